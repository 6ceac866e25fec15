"""Load the data sets of sequences that are generated, and CIFAR-10 as a sequence of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.cache import Arrays
from saccade.data.splits import (
    DatasetInfo,
    Split,
    Splits,
    hold_out_validation,
    limit_and_fold,
)
from saccade.data.tasks.draws import part_key
from saccade.data.tasks.generate import Make, generated
from saccade.data.tasks.listops import SYMBOLS, listops
from saccade.data.tasks.options import pathfinder_settings, recall_options, task_options
from saccade.data.tasks.pathfinder import PathfinderSettings, pathfinder
from saccade.data.tasks.recall import FILLERS, recall
from saccade.errors import ConfigError

__all__ = ["gray_levels", "hold_out_sequences", "load_generated", "load_pixels"]

COUNTS = {
    "listops_lra": (98_000, 2_000),
    "listops_taylorshift": (98_000, 2_000),
    "pathfinder": (180_000, 20_000),
    "recall": (20_000, 2_000),
}
"""Training items, validation included, and test items."""
GENERATOR = 1
"""Version of the generators; raised when they make other items."""
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class _Task:
    """A generated task: what its items depend on, how they are made, and what they are."""

    options: Mapping[str, Any]
    make: Make
    info: DatasetInfo


def load_generated(config: DataConfig) -> Splits:
    """Load a generated data set; its items are generated if they are not in the cache."""
    counts = dict(zip(("train", "test"), COUNTS[config.name], strict=True))
    counts |= {"train": config.num_train or counts["train"]}
    counts |= {"test": config.num_test or counts["test"]}
    parts = {}
    for part, count in counts.items():
        task = _task(config, part)
        found = generated(
            config.name,
            part,
            count,
            task.make,
            options={**task.options, "generator": GENERATOR},
            workers=config.workers,
        )
        parts[part] = Split(found["labels"], found["symbols"], lengths=found.get("lengths"))
    return hold_out_sequences(parts["train"], parts["test"], task.info, config)


def hold_out_sequences(train: Split, test: Split, info: DatasetInfo, config: DataConfig) -> Splits:
    """Apply `num_train`, `num_test` and folds, and hold out validation."""
    train, test = limit_and_fold(train, test, config)
    train, val = hold_out_validation(train, config)
    return Splits(train, val, test, info)


def load_pixels(arrays: Arrays, config: DataConfig) -> Splits:
    """CIFAR-10 as 1,024 gray levels, row by row."""
    if config.image_size is not None:
        raise ConfigError(
            f"data.image_size must be unset for {config.name}, got {config.image_size}"
        )
    train = Split(arrays.train_labels, gray_levels(arrays.train_images))
    test = Split(arrays.test_labels, gray_levels(arrays.test_images))
    length = arrays.train_images.shape[-2] * arrays.train_images.shape[-1]
    info = _info(config.name, arrays.class_names, length, "pixels", num_symbols=256)
    return hold_out_sequences(train, test, info, config)


def gray_levels(images: Tensor) -> Tensor:
    """Gray levels (N, H W) of uint8 images (N, 3, H, W)."""
    parts = []
    for chunk in torch.split(images, 4096):
        red, green, blue = (chunk[:, i].double() * LUMA[i] for i in range(3))
        parts.append((red + green + blue).round().to(torch.uint8).flatten(1))
    return torch.cat(parts)


def _info(
    name: str,
    classes: tuple[str, ...],
    length: int,
    kind: Literal["pixels", "bytes", "symbols"],
    *,
    num_symbols: int,
    pad_symbol: int | None = None,
    symbols: tuple[str, ...] = (),
) -> DatasetInfo:
    return DatasetInfo(
        name=name,
        num_classes=len(classes),
        class_names=classes,
        image_size=(1, length),
        channels=1,
        mean=(0.0,),
        std=(1.0,),
        kind=kind,
        num_symbols=num_symbols,
        pad_symbol=pad_symbol,
        symbols=symbols,
    )


def _task(config: DataConfig, part: str) -> _Task:
    options = task_options(config)
    key = part_key(options["seed"], part)
    if config.name == "pathfinder":
        settings = pathfinder_settings(config)
        known = {"seed": options["seed"], **asdict(settings)}
        classes, length = ("apart", "joined"), settings.size**2
        info = _info(config.name, classes, length, "pixels", num_symbols=256)
        return _Task(known, partial(_make_pathfinder, key, settings), info)
    if config.image_size is not None:
        raise ConfigError(
            f"data.image_size must be unset for {config.name}, got {config.image_size}"
        )
    if config.name == "recall":
        sizes = recall_options(options)
        names = tuple(str(value) for value in range(sizes["num_values"]))
        fillers = FILLERS if sizes["length"] > 2 * sizes["num_pairs"] + 1 else 0
        symbols = (
            *(f"k{number}" for number in range(sizes["num_keys"])),
            *(f"v{number}" for number in range(sizes["num_values"])),
            *(f"f{number}" for number in range(fillers)),
        )
        known = {"seed": options["seed"], **sizes}
        info = _info(
            config.name,
            names,
            sizes["length"],
            "symbols",
            num_symbols=len(symbols),
            symbols=symbols,
        )
        return _Task(known, partial(_make_recall, key, sizes), info)
    version: Literal["lra", "taylorshift"]
    version = "lra" if config.name == "listops_lra" else "taylorshift"
    info = _info(
        config.name,
        tuple(map(str, range(10))),
        2000,
        "symbols",
        num_symbols=len(SYMBOLS),
        pad_symbol=0,
        symbols=SYMBOLS,
    )
    return _Task({"seed": options["seed"]}, partial(_make_listops, version, key), info)


def _make_pathfinder(
    key: int, settings: PathfinderSettings, start: int, stop: int
) -> dict[str, Any]:
    images, labels = pathfinder(key, start, stop, settings)
    return {"symbols": images.reshape(len(images), -1), "labels": labels}


def _make_recall(key: int, sizes: Mapping[str, int], start: int, stop: int) -> dict[str, Any]:
    symbols, labels = recall(key, start, stop, **sizes)
    return {"symbols": symbols, "labels": labels}


def _make_listops(
    version: Literal["lra", "taylorshift"], key: int, start: int, stop: int
) -> dict[str, Any]:
    symbols, lengths, labels = listops(version, key, start, stop)
    return {"symbols": symbols, "lengths": lengths, "labels": labels.astype(np.int64)}
