"""Fine-tuning with few images: CIFAR-10 classes that the pretraining did not see.

    python benchmarks/fine_tune.py --work DIR --out results/fine_tune/fine_tune_cpu_202611.json

A small network is trained on seven classes. It is then trained on 300 images of the three others,
from scratch, from the pretrained weights with one learning rate for all layers, and from them with
lower rates in early layers, with three seeds each. The accuracy is that of the 3,000 test images.
Runs that are finished in --work are not repeated.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from saccade.config import Config, make_config, with_values
from saccade.data import load_splits
from saccade.environment import describe_run
from saccade.io import write_json
from saccade.runs import RunFolder
from saccade.train import train

HELD_OUT = ("horse", "ship", "truck")
MODEL = {"name": "vit_micro_patch4_32", "attention": "taylor", "overrides": {"proj_drop_rate": 0.0}}


def base_config(data: Path, epochs: int, batch_size: int) -> Config:
    """The settings that all runs share."""
    return make_config(
        {
            "model": MODEL,
            "data": {
                "name": "folder",
                "root": str(data),
                "image_size": 32,
                "val_fraction": 0.1,
                "workers": 0,
            },
            "augment": {"crop_padding": 4, "flip": True},
            "optim": {"lr": 0.002, "schedule": "one_cycle"},
            "train": {"epochs": epochs, "batch_size": batch_size, "label_smoothing": 0.1},
            "run": {"checkpoint_every_epochs": epochs},
        }
    )


def write_folder(root: Path, names: tuple[str, ...], num_train: int) -> None:
    """Write CIFAR-10 images of some classes as PNG files, `num_train` of a class, and all tests."""
    splits = load_splits(make_config({"data": {"name": "cifar10", "val_fraction": 0.0}}).data)
    for part, count in (("train", num_train), ("test", None)):
        split = getattr(splits, part)
        for name in names:
            label = splits.info.class_names.index(name)
            folder = root / part / name
            folder.mkdir(parents=True, exist_ok=True)
            for index in torch.nonzero(split.labels == label)[:count, 0].tolist():
                pixels = split.images[index].permute(1, 2, 0).numpy()
                Image.fromarray(pixels).save(folder / f"{index:05}.png")


def accuracy(config: Config, out: Path) -> dict[str, Any]:
    """Train unless it is done, and return the facts of the run."""
    run = RunFolder(out)
    if not (run.exists() and run.is_finished()):
        train(config, out, resume=True, quiet=True)
    summary = run.summary()
    return {key: summary[key] for key in ("test_accuracy", "test_count", "seconds", "seed")}


def main() -> None:
    """Run the experiment and write its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretraining-images", type=int, default=1500, help="of each class")
    parser.add_argument("--pretraining-epochs", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    started = time.time()
    names = load_splits(make_config({"data": {"name": "cifar10"}}).data).info.class_names
    many, few = given.work / "many", given.work / "few"
    if not few.exists():
        write_folder(many, tuple(n for n in names if n not in HELD_OUT), given.pretraining_images)
        write_folder(few, HELD_OUT, 100)
    first = given.work / "pretraining"
    facts = accuracy(base_config(many, given.pretraining_epochs, 64), first)
    small = base_config(few, given.epochs, 16)
    ways = {
        "from scratch": {},
        "fine-tuned": {"init.from": str(first), "optim.lr": 0.001},
        "fine-tuned, layer_decay 0.7": {
            "init.from": str(first),
            "optim.lr": 0.001,
            "optim.layer_decay": 0.7,
        },
    }
    found = {
        way: [
            accuracy(
                with_values(small, {**changes, "run.seed": seed}),
                given.work / f"{way.replace(' ', '-').replace(',', '')}-{seed}",
            )
            for seed in range(given.seeds)
        ]
        for way, changes in ways.items()
    }
    settings = {key: value for key, value in vars(given).items() if key not in ("work", "out")}
    result = {
        "title": "300 images of three CIFAR-10 classes, from scratch and fine-tuned",
        "settings": {**settings, "held_out": HELD_OUT, "model": MODEL},
        "environment": describe_run(torch.device("cpu"), 1),
        "seconds": time.time() - started,
        "pretraining": facts,
        "ways": found,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, result)
    for way, runs in found.items():
        shown = ", ".join(f"{100 * run['test_accuracy']:.2f}" for run in runs)
        mean = sum(run["test_accuracy"] for run in runs) / len(runs)
        print(f"{way:<30} {100 * mean:.2f} % ({shown})")


if __name__ == "__main__":
    main()
