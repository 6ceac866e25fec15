"""Run folders with known content, written as training writes them but in no time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.config import load_config
from saccade.runs import RunFolder

IMAGES = 400
CLASSES = ("0", "1", "2", "3")
ENVIRONMENT = {
    "time": "2026-11-15T10:00:00+00:00",
    "saccade": "0.1.0",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "triton": None},
    "platform": "Linux",
    "cpu_count": 2,
    "torch_threads": 1,
    "device": "x86_64",
    "cuda": None,
    "world_size": 1,
    "git_revision": "0123456789abcdef0123456789abcdef01234567+",
    "command": ["saccade", "train", "digits-quick"],
}


def targets(images: int = IMAGES, classes: int = len(CLASSES)) -> NDArray[Any]:
    return np.arange(images, dtype=np.int32) % classes


def predictions(accuracy: float, seed: int, *, images: int, classes: int) -> dict[str, Any]:
    """Predictions of so many images right, others wrong, more or less the same ones each seed."""
    target = targets(images, classes)
    hardness = np.random.default_rng(7).random(images)
    luck = 0.1 * np.random.default_rng(seed).random(images)
    wrong = np.argsort(hardness + luck)[: round((1 - accuracy) * images)]
    predicted = target.copy()
    predicted[wrong] = (target[wrong] + 1) % classes
    confidence = np.random.default_rng(seed).uniform(0.5, 1, images).astype(np.float32)
    return {"target": target, "predicted": predicted, "confidence": confidence}


def make_run(
    path: Path,
    attention: str = "softmax",
    seed: int = 0,
    *,
    accuracy: float = 0.9,
    img_per_s: float = 1000.0,
    overrides: Sequence[str] = (),
    classes: Sequence[str] = CLASSES,
    images: int = IMAGES,
    keep_predictions: bool = True,
    summary: dict[str, Any] | None = None,
    validated: Sequence[float] = (),
) -> RunFolder:
    """A finished run of two epochs, or of those that were validated with these accuracies."""
    course = validated or (accuracy - 0.2, accuracy - 0.1)
    epochs = f"train.epochs={len(course)}"
    words = [f"model.attention={attention}", f"run.seed={seed}", epochs, *overrides]
    run = RunFolder.create(path, load_config("digits-quick", words))
    run.write("dataset.json", {"name": "digits", "class_names": list(classes)})
    run.write("environment.json", {**ENVIRONMENT, "seed": seed})
    for epoch, value in enumerate(course, start=1):
        run.append_metrics(
            {
                "kind": "epoch",
                "epoch": epoch,
                "train_loss": 1 / epoch,
                "val_accuracy": value,
                "seconds": 2.0,
            }
        )
    arrays = predictions(accuracy, seed, images=images, classes=len(classes))
    if keep_predictions:
        run.write_predictions(arrays)
    right = float((arrays["target"] == arrays["predicted"]).mean())
    facts = {
        "test_accuracy": right,
        "val_accuracy_best": accuracy,
        "seconds": 4.0,
        "seconds_per_epoch": 2000 / img_per_s,
        "img_per_s": img_per_s + seed,
        "peak_memory_mib": 100.0 + seed,
        "parameters": 1000,
        "flops": 2_000_000,
        "model": "hybrid_cifar",
        "attention": attention,
        "dataset": "digits",
        "seed": seed,
    }
    run.write("summary.json", {**facts, **(summary or {})})
    run.write("status.json", {"state": "finished", "epoch": len(course), "step": 40, "message": ""})
    return run


def make_study(path: Path, accuracies: dict[str, float], *, seeds: int = 3, **more: Any) -> Path:
    """A comparison's runs, as `saccade compare` lays them out."""
    for attention, accuracy in accuracies.items():
        for seed in range(seeds):
            place = path / "runs" / attention / f"seed-{seed}"
            make_run(place, attention, seed, accuracy=accuracy, **more)
    return path


def write_record(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({"version": 1, **values}))
