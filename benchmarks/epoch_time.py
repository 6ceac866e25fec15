"""Seconds per epoch of one model, optimizer and loop, with our loader and with the usual one.

The usual one decodes, augments and mixes in worker processes (`torchvision_loader.py`), pins its
batches and copies them to the device. Only the loader differs. Epochs with one loader follow each
other, because its workers run ahead; the first of each is warm-up.

    python benchmarks/epoch_time.py --out results/epoch_time/epoch_time_h200_202611 [--data cifar10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torchvision_loader import cpu_loader
from train_overhead import make_trainer, publish, timed

from saccade.data.loader import Batch
from saccade.environment import describe_run
from saccade.train.loop import Trainer


class UsualLoader:
    """torch's loader with the face of ours."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        config, splits = trainer.config, trainer.splits
        self.device = trainer.ranks.device
        self.batches = cpu_loader(
            splits.train,
            splits.info,
            config.augment,
            batch_size=config.train.batch_size,
            workers=workers,
            pin=self.device.type == "cuda",
        )

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, _epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, copied to the device as they come."""
        for images, targets in self.batches:
            valid = torch.ones(len(images), dtype=torch.bool, device=self.device)
            yield Batch(
                images.to(self.device, non_blocking=True),
                targets.to(self.device, non_blocking=True),
                torch.arange(len(images)),
                valid,
                len(images),
            )


def epochs(trainer: Trainer, count: int) -> list[float]:
    """Seconds of some epochs after one that is not counted."""
    found = []
    for _ in range(1 + count):
        trainer.at.batch = 0
        found.append(timed(trainer, trainer.ranks.device))
    return found[1:]


def measure(recipe: str, overrides: list[str], workers: int, repeats: int) -> dict[str, Any]:
    """Both kinds of epoch of one recipe."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(recipe, overrides, Path(folder) / "run")
        images = len(trainer.train_loader) * trainer.config.train.batch_size
        ours = epochs(trainer, repeats)
        trainer.train_loader = UsualLoader(trainer, workers)  # type: ignore[assignment]
        usual = epochs(trainer, repeats)
        return {
            "recipe": recipe,
            "overrides": overrides,
            "images": images,
            "workers": workers,
            "saccade_seconds": ours,
            "torchvision_seconds": usual,
            "faster": statistics.median(usual) / statistics.median(ours),
            "environment": describe_run(trainer.ranks.device, trainer.ranks.world_size),
        }


def named(result: dict[str, Any]) -> str:
    """The recipe, with what was changed in it but for the data."""
    changes = [f"`{change}`" for change in result["overrides"] if not change.startswith("data.")]
    return " ".join([result["recipe"], *changes])


def table(results: list[dict[str, Any]]) -> str:
    """All results as Markdown."""
    environment, data = results[0]["environment"], results[0]["overrides"][0]
    lines = [
        f"# Seconds an epoch, by loader\n\n{environment['device']}, "
        f"{environment['cpu_count']} CPU cores, torch {environment['packages']['torch']}; medians "
        f"of {len(results[0]['saccade_seconds'])} epochs of images of "
        f"{data.removeprefix('data.name=')}.\n",
        "| recipe | images | ours s | torchvision s | workers | faster |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {named(r)} | {r['images']:,} | {statistics.median(r['saccade_seconds']):.2f} "
        f"| {statistics.median(r['torchvision_seconds']):.2f} | {r['workers']} "
        f"| {r['faster']:.2f}x |"
        for r in results
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print a table, write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes to the recipes")
    parser.add_argument("--recipes", default="vit-cifar10,cifar10-taylor")
    parser.add_argument("--data", default="shapes", help="a data set; shapes needs no download")
    parser.add_argument("--images", type=int, default=20_000, help="how many shapes")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    arguments = parser.parse_args()
    data = [f"data.name={arguments.data}"]
    if arguments.data == "shapes":
        data += [f"data.num_train={arguments.images}", "data.num_test=1000"]
    recipes = arguments.recipes.split(",")
    results = [
        measure(recipe, [*data, *arguments.overrides], arguments.workers, arguments.repeats)
        for recipe in recipes
    ]
    publish(table(results), results, arguments.out)


if __name__ == "__main__":
    main()
