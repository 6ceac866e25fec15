"""Data sets of sequences: generated tasks, and CIFAR-10 as a sequence of pixels.

Every item of a task is a function of (seed, part, index) and the options of the task. It does not
depend on the number of items, on the batch or on the number of processes that generate. Items are
generated once and kept in the user's cache, in a file for each part,
`NAME-HASH-PART-COUNT.safetensors`. The hash is that of the options and of the version of the
generator. The file holds the hash of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saccade.config import DataConfig
from saccade.data.cache import (
    Arrays,
    cache_dir,
    is_cached,
    locked,
    read_arrays,
    remove_leftovers,
    write_arrays,
)
from saccade.data.listops import SYMBOLS, listops
from saccade.data.pathfinder import SETTINGS, PathfinderSettings, pathfinder
from saccade.data.randomness import part_key
from saccade.data.recall import FILLERS, recall
from saccade.data.splits import DatasetInfo, Split, Splits, hold_out_validation, limit_and_fold
from saccade.errors import MAX_VALUE, ConfigError, DataError, UnknownNameError, shorten

__all__ = [
    "GENERATED",
    "Make",
    "gray_levels",
    "load_generated",
    "load_pixels",
    "make_items",
    "name_arrays",
    "refuse_options",
    "task_options",
]

Make = Callable[[int, int], tuple[NDArray[Any], ...]]
"""The items from a position to another: symbols, lengths if they differ, and labels."""

_COUNTS = {
    "listops_lra": (98_000, 2_000),
    "listops_taylorshift": (98_000, 2_000),
    "pathfinder": (180_000, 20_000),
    "recall": (20_000, 2_000),
}
"""Training items, validation included, and test items."""
GENERATED = tuple(_COUNTS)
_GENERATOR = 1
"""Version of the generators; raised when they make other items."""
_CHUNK = 1024  # items that a process makes at a time
_LUMA = (0.299, 0.587, 0.114)

_OPTIONS: dict[str, dict[str, Any]] = {
    "listops_lra": {"seed": 0},
    "listops_taylorshift": {"seed": 0},
    "pathfinder": {"seed": 0} | {k: v for k, v in asdict(SETTINGS[32]).items() if k != "size"},
    "recall": {"seed": 0, "num_pairs": 16, "num_keys": 64, "num_values": 16, "length": None},
    "text_folder": {"max_length": 4000},
}
"""Options of each data set, with their defaults (for pathfinder, those at 32 px)."""
_MAX_LENGTH = 1 << 20
"""Longest sequence."""
_MAX_SIZE = 128
"""Largest count or size of an option of pathfinder: the side of its larger images."""
_MOST = {"seed": (1 << 64) - 1, "cells": 16}
_LEAST = {"seed": 0, "num_distractors": 0}
_INTEGERS = ("contour_length", "num_distractors", "distractor_length", "cells", "seed")
"""The options of pathfinder that are integers."""
_MAX_SYMBOLS = 1 << 15

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Task:
    """A generated task: what its items depend on, how they are made, and what they are."""

    options: Mapping[str, Any]
    make: Make
    info: DatasetInfo


def load_generated(config: DataConfig) -> Splits:
    """Load a generated data set; its items are generated if they are not in the cache."""
    train, test = _COUNTS[config.name]
    return hold_out_sequences(
        _load_part(config, "train", config.num_train or train),
        _load_part(config, "test", config.num_test or test),
        _task(config, "train").info,
        config,
    )


def hold_out_sequences(train: Split, test: Split, info: DatasetInfo, config: DataConfig) -> Splits:
    """Apply `num_train`, `num_test` and folds, and hold out validation."""
    train, test = limit_and_fold(train, test, config)
    train, val = hold_out_validation(train, config)
    return Splits(train, val, test, info)


def load_pixels(arrays: Arrays, config: DataConfig) -> Splits:
    """CIFAR-10 as 1,024 gray levels, row by row."""
    _refuse_image_size(config)
    train = Split(arrays.train_labels, gray_levels(arrays.train_images))
    test = Split(arrays.test_labels, gray_levels(arrays.test_images))
    length = arrays.train_images.shape[-2] * arrays.train_images.shape[-1]
    info = _info(config, arrays.class_names, length, kind="pixels", num_symbols=256)
    return hold_out_sequences(train, test, info, config)


def gray_levels(images: Tensor) -> Tensor:
    """Gray levels (N, H W) of uint8 images (N, 3, H, W)."""
    parts = []
    for chunk in torch.split(images, 4096):
        red, green, blue = (chunk[:, i].double() * _LUMA[i] for i in range(3))
        parts.append((red + green + blue).round().to(torch.uint8).flatten(1))
    return torch.cat(parts)


# The tasks and their options


def _task(config: DataConfig, part: str) -> _Task:
    options = task_options(config)
    seed = {"seed": options["seed"]}
    key = part_key(options["seed"], part)
    if config.name == "pathfinder":
        settings = _pathfinder_settings(config, options)
        info = _info(config, ("apart", "joined"), settings.size**2, kind="pixels", num_symbols=256)
        return _Task(seed | asdict(settings), partial(pathfinder, key, settings=settings), info)
    _refuse_image_size(config)
    if config.name == "recall":
        sizes = _recall_sizes(options)
        keys, values = sizes["num_keys"], sizes["num_values"]
        fillers = FILLERS if sizes["length"] > 2 * sizes["num_pairs"] + 1 else 0
        letters = {"k": keys, "v": values, "f": fillers}
        symbols = tuple(f"{letter}{i}" for letter, count in letters.items() for i in range(count))
        info = _info(config, tuple(map(str, range(values))), sizes["length"], symbols=symbols)
        return _Task(seed | sizes, partial(recall, key, **sizes), info)
    version: Literal["lra", "taylorshift"]
    version = "lra" if config.name == "listops_lra" else "taylorshift"
    info = _info(config, tuple(map(str, range(10))), 2000, symbols=SYMBOLS, pad_symbol=0)
    return _Task(seed, partial(listops, version, key), info)


def _info(
    config: DataConfig,
    classes: tuple[str, ...],
    length: int,
    *,
    kind: Literal["pixels", "symbols"] = "symbols",
    num_symbols: int | None = None,
    symbols: tuple[str, ...] = (),
    pad_symbol: int | None = None,
) -> DatasetInfo:
    return DatasetInfo(
        name=config.name,
        num_classes=len(classes),
        class_names=classes,
        image_size=(1, length),
        channels=1,
        mean=(0.0,),
        std=(1.0,),
        kind=kind,
        num_symbols=num_symbols or len(symbols),
        pad_symbol=pad_symbol,
        symbols=symbols,
    )


def _refuse_image_size(config: DataConfig) -> None:
    if config.image_size is not None:
        raise ConfigError(
            f"data.image_size must be unset for {config.name}, got {config.image_size}"
        )


def task_options(config: DataConfig) -> dict[str, Any]:
    """The options of `config` with the defaults of the data set.

    Raises:
        UnknownNameError: The data set has no such option.
        ConfigError: A value is of the wrong kind.
    """
    known = _OPTIONS[config.name]
    for name, value in config.options.items():
        if name not in known:
            raise UnknownNameError(f"option of data set {config.name!r}", name, known)
        _check(config, name, value)
    return known | config.options


def refuse_options(config: DataConfig) -> None:
    """Raise if options are set for a data set that has none."""
    if config.options and config.name not in _OPTIONS:
        raise ConfigError(
            f"data.options must be empty for {config.name!r}, got {', '.join(config.options)}"
        )


def _check(config: DataConfig, name: str, value: Any) -> None:
    if name == "length" and value is None:
        return
    is_size = config.name == "pathfinder" and name not in _INTEGERS
    is_number = isinstance(value, (int, float) if is_size else int) and not isinstance(value, bool)
    least = _LEAST.get(name, 0 if is_size else 1)
    most = _MOST.get(name, _MAX_SIZE if config.name == "pathfinder" else _MAX_LENGTH)
    is_allowed = is_number and least <= value <= most
    if not is_allowed or (is_size and value == 0 and name != "margin"):
        what = "a number above 0" if is_size else f"an integer of at least {least}"
        raise ConfigError(
            f"data.options.{name} must be {what} and at most {most}, got "
            f"{shorten(repr(value), MAX_VALUE)}"
        )


def _recall_sizes(options: Mapping[str, Any]) -> dict[str, int]:
    pairs, keys, values = (options[name] for name in ("num_pairs", "num_keys", "num_values"))
    if keys < pairs:
        raise ConfigError(
            f"data.options.num_keys must be at least num_pairs={pairs}, because the keys of a "
            f"sequence differ, got {keys}"
        )
    if values < 2:
        raise ConfigError(f"data.options.num_values must be at least 2, got {values}")
    if keys + values > _MAX_SYMBOLS - FILLERS:
        raise ConfigError(
            f"data.options.num_keys + num_values must be at most {_MAX_SYMBOLS - FILLERS}, got "
            f"{keys + values}"
        )
    least = 2 * pairs + 1
    length = options["length"] or least
    if length < least:
        raise ConfigError(
            f"data.options.length must be at least {least}, for {pairs} pairs and the query, got "
            f"{length}"
        )
    return {"num_pairs": pairs, "num_keys": keys, "num_values": values, "length": length}


def _pathfinder_settings(config: DataConfig, options: Mapping[str, Any]) -> PathfinderSettings:
    size = config.image_size or 32
    if size not in SETTINGS:
        raise ConfigError(
            f"data.image_size must be {' or '.join(map(str, SETTINGS))} for pathfinder, got {size}"
        )
    own = {name: options[name] for name in config.options if name != "seed"}
    return PathfinderSettings(**{**asdict(SETTINGS[size]), **own})


# Generating items and keeping them


def _load_part(config: DataConfig, part: str, count: int) -> Split:
    """Items 0 to `count` of a part from the cache; they are generated once.

    Raises:
        DataError: The file cannot be written, or is damaged.
    """
    task = _task(config, part)
    known = {"name": config.name, "part": part, **task.options, "generator": _GENERATOR}
    options = json.dumps(known, sort_keys=True)
    digest = hashlib.sha256(options.encode()).hexdigest()[:12]
    path = cache_dir() / f"{config.name}-{digest}-{part}-{count}.safetensors"
    waiting = partial(_log.warning, "waiting for another process that writes %s", path)
    if not is_cached(path):
        with locked(path, waiting):
            if not is_cached(path):
                remove_leftovers(path)
                _log.info("generating %d items of %s (%s) into %s", count, config.name, part, path)
                items = make_items(task.make, count, config.workers)
                _check_distinct(items["symbols"], config.name)
                write_arrays(path, dict(sorted(items.items())), {"options": options})
    repair = "delete it, to generate it again"
    found, metadata = read_arrays(path, "pt", repair=repair)
    if metadata.get("options") != options or any(len(array) != count for array in found.values()):
        raise DataError(f"{path} holds other items: {repair}")
    return Split(found["labels"], found["symbols"], lengths=found.get("lengths"))


class _Chunks(Dataset[dict[str, Tensor]]):
    """Chunks of items; a worker process makes one at a time."""

    def __init__(self, make: Make, count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return -(-self._count // _CHUNK)

    def __getitem__(self, chunk: int) -> dict[str, Tensor]:
        made = self._make(chunk * _CHUNK, min(self._count, (chunk + 1) * _CHUNK))
        return {name: torch.from_numpy(array) for name, array in name_arrays(made).items()}


def name_arrays(made: tuple[NDArray[Any], ...]) -> dict[str, NDArray[Any]]:
    """What a generator returned, by name; an image becomes one sequence."""
    symbols, *lengths, labels = made
    named = {"symbols": symbols.reshape(len(symbols), -1), "labels": labels}
    return named | ({"lengths": lengths[0]} if lengths else {})


def make_items(make: Make, count: int, workers: int) -> dict[str, Tensor]:
    """Items 0 to `count`; the same for any number of worker processes."""
    chunks = _Chunks(make, count)
    processes = min(workers, len(chunks), os.cpu_count() or 1) if len(chunks) > 1 else 0
    loader = DataLoader(chunks, batch_size=None, num_workers=processes)
    parts = [{name: tensor.clone() for name, tensor in part.items()} for part in loader]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _check_distinct(symbols: Tensor, name: str) -> None:
    """Raise if two items are the same, which tiny options of a task can bring about."""
    rows = symbols.numpy()
    distinct = {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows}
    if copies := len(rows) - len(distinct):
        raise DataError(
            f"{name}: {copies} of {len(symbols)} items are copies of others: choose "
            "larger data.options, or fewer items by data.num_train and data.num_test"
        )
