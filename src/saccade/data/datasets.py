"""The data sets by name: one line about each, and how its splits are loaded.

Importing this module loads neither torch nor NumPy, so that names are listed fast; each loader
imports what it needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saccade.errors import ConfigError, DataError
from saccade.registry import Registry

if TYPE_CHECKING:
    from saccade.config import DataConfig
    from saccade.data.cache import Arrays
    from saccade.data.splits import Split, Splits

__all__ = ["DATASETS", "DOWNLOADABLE", "HUB_PREFIX", "Entry", "list_datasets", "load_splits"]

DOWNLOADABLE = ("cifar10", "cifar100", "mnist", "fashion_mnist")
"""The sets that `saccade data fetch` puts into the cache; see `sources.py`."""
HUB_PREFIX = "hf:"  # the start of the name of a set of the Hugging Face hub
_SHAPES_TRAIN, _SHAPES_TEST = 8000, 2000
_SHAPES_SAMPLE, _STREAM_SAMPLE = 64, 512  # images sampled for mean and standard deviation

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A data set: a one-line title and the function that loads it."""

    title: str
    load: Callable[[DataConfig], Splits]


def list_datasets(pattern: str = "*") -> list[str]:
    """Return the sorted names of the data sets that match a shell pattern."""
    return DATASETS.names(pattern)


def load_splits(config: DataConfig, *, by_position: bool = False) -> Splits:
    """Load a data set and hold out its validation split.

    Args:
        config: The data set and its options.
        by_position: Split a folder by the positions of its files. For old runs that did not
            record their names.

    Raises:
        UnknownNameError: There is no data set of this name.
        DataError: The data set is missing or broken.
    """
    from saccade.data.sequence_sets import refuse_options

    refuse_options(config)
    if config.name.startswith(HUB_PREFIX):
        from saccade.data.hub import load_hub

        _refuse_root(config)
        return _hold_out(*load_hub(config), config)
    if by_position and config.name == "text_folder":
        return _load_text_folder(config, by_position=True)
    if by_position and config.name == "folder":
        return _load_folder(config, by_position=True)
    return DATASETS[config.name].load(config)


def _load_digits(config: DataConfig) -> Splits:
    import torch

    from saccade.data.cache import Arrays
    from saccade.data.held_out import read_digits
    from saccade.data.stratify import TEST_FRACTION, TEST_SEED, stratified_split

    _refuse_root(config)
    images, labels = map(torch.from_numpy, read_digits())
    train, test = stratified_split(labels, TEST_FRACTION, TEST_SEED)
    names = tuple(map(str, range(10)))
    arrays = Arrays(images[train], labels[train], images[test], labels[test], names)
    return _split_arrays(arrays, config)


def _load_shapes(config: DataConfig) -> Splits:
    from saccade.data.shapes import DEFAULT_SIZE, SHAPES, shapes_split

    _refuse_root(config)
    size = config.image_size or DEFAULT_SIZE
    train = shapes_split(config.num_train or _SHAPES_TRAIN, size, "train")
    test = shapes_split(config.num_test or _SHAPES_TEST, size, "test")
    return _hold_out(train, test, SHAPES, config)


def _load_folder(config: DataConfig, *, by_position: bool = False) -> Splits:
    from saccade.data.folder import load_folder

    return load_folder(config, by_position=by_position)


def _load_text_folder(config: DataConfig, *, by_position: bool = False) -> Splits:
    from saccade.data.text_folder import load_text_folder

    return load_text_folder(config, by_position=by_position)


def _load_generated(config: DataConfig) -> Splits:
    from saccade.data.sequence_sets import load_generated

    _refuse_root(config)
    return load_generated(config)


def _load_pixels(config: DataConfig) -> Splits:
    from saccade.data.sequence_sets import load_pixels

    return load_pixels(_read_source("cifar10", config), config)


def _load_source(config: DataConfig) -> Splits:
    return _split_arrays(_read_source(config.name, config), config)


def _read_source(name: str, config: DataConfig) -> Arrays:
    """Read a downloadable set from `data.root` if set, else from the cache."""
    from saccade.data.cache import cache_path, is_cached, read_cache
    from saccade.data.fetch import check_cached
    from saccade.data.local_copies import read_local
    from saccade.data.sources import SOURCES

    source = SOURCES[name]
    if config.root is not None:
        return read_local(source, config.root)
    path = cache_path(name)
    if not is_cached(path):
        raise DataError(
            f"data set {name!r} is not in the cache ({path}): run `saccade data fetch {name}`, or "
            "set data.root to a local copy"
        )
    arrays, metadata = read_cache(path)
    check_cached(source, path, arrays, metadata)
    return arrays


def _refuse_root(config: DataConfig) -> None:
    if config.root is not None:
        raise ConfigError(
            f"data.root must be unset for {config.name}, which is not read from files, got "
            f"{str(config.root)!r}"
        )


def _split_arrays(arrays: Arrays, config: DataConfig) -> Splits:
    """Split an in-memory data set and compute the statistics of its training split."""
    from saccade.data.splits import Split

    height, width = arrays.train_images.shape[-2:]
    if config.image_size is not None and (config.image_size, config.image_size) != (height, width):
        raise ConfigError(
            f"data.image_size must be unset for {config.name}, whose images are {height} x "
            f"{width}, got {config.image_size}; shapes, folder and hf: sets take a size"
        )
    train = Split(arrays.train_labels, arrays.train_images)
    test = Split(arrays.test_labels, arrays.test_images)
    return _hold_out(train, test, arrays.class_names, config)


def _hold_out(train: Split, test: Split, names: tuple[str, ...], config: DataConfig) -> Splits:
    """Apply `num_train`, `num_test` and folds, hold out validation, and compute statistics."""
    from saccade.data.decoding import measure_channels
    from saccade.data.splits import DatasetInfo, Splits, hold_out_validation, limit_and_fold

    train, test = limit_and_fold(train, test, config)
    train, val = hold_out_validation(train, config)
    missing = len(names) - len(set(val.labels.tolist()))
    if val.stream is not None and len(val) and missing:
        _log.warning(
            "%d of %d classes are not in the validation split: a streamed set is split by row "
            "groups and is not stratified",
            missing,
            len(names),
        )
    sample = _SHAPES_SAMPLE if train.stream is None else _STREAM_SAMPLE
    mean, std = measure_channels(train, sample=sample, workers=config.workers)
    channels, height, width = train.image_shape
    info = DatasetInfo(config.name, len(names), names, (height, width), channels, mean, std)
    return Splits(train, val, test, info)


DATASETS: Registry[Entry] = Registry("data set")
_TITLES: dict[Callable[[DataConfig], Splits], dict[str, str]] = {
    _load_digits: {
        "digits": "1797 handwritten digits, 8 x 8, 10 classes (scikit-learn; no download)",
    },
    _load_shapes: {
        "shapes": "colored shapes drawn at any resolution, 8 classes (no download)",
    },
    _load_folder: {
        "folder": "your folder at data.root: one sub-folder a class, or train/, val/, test/",
    },
    _load_text_folder: {
        "text_folder": "your text files at data.root, as bytes: one sub-folder a class",
    },
    _load_generated: {
        "listops_lra": "ListOps of the Long Range Arena: four operators, 10 classes (generated)",
        "listops_taylorshift": "ListOps of TaylorShift: six operators, 10 classes (generated)",
        "pathfinder": "are two discs joined by a path? 32 or 128 px, 2 classes (generated)",
        "recall": "the value of a key among pairs of keys and values (generated)",
    },
    _load_pixels: {
        "cifar10_pixel": "CIFAR-10 as 1,024 gray levels, 10 classes",
    },
    _load_source: {
        "cifar10": "CIFAR-10: 60000 photographs, 32 x 32, 10 classes",
        "cifar100": "CIFAR-100: 60000 photographs, 32 x 32, 100 classes",
        "mnist": "MNIST: 70000 handwritten digits, 28 x 28, 10 classes",
        "fashion_mnist": "Fashion-MNIST: 70000 pieces of clothing, 28 x 28, 10 classes",
    },
}
for _load, _sets in _TITLES.items():
    for _name, _title in _sets.items():
        DATASETS.register(_name, Entry(_title, _load))
