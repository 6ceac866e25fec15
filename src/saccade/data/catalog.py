"""The registry of data sets, and loading of their train, validation and test splits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from saccade.config import DataConfig
from saccade.data.cache import Arrays, cache_path, is_cached, read_cache
from saccade.data.digits import load_digits
from saccade.data.fetch import check_cached, read_local
from saccade.data.folder import load_folder
from saccade.data.hub import HUB_PREFIX, load_hub
from saccade.data.names import TITLES
from saccade.data.normalization import measure_channels
from saccade.data.sequence_sets import load_generated, load_pixels
from saccade.data.shapes import DEFAULT_SIZE, SHAPES, shapes_split
from saccade.data.sources import SOURCES
from saccade.data.splits import (
    DatasetInfo,
    Split,
    Splits,
    hold_out_validation,
    limit_and_fold,
)
from saccade.data.tasks.options import GENERATED, refuse_options
from saccade.data.text_folder import load_text_folder
from saccade.errors import ConfigError, DataError
from saccade.registry import Registry

_SHAPES_TRAIN, _SHAPES_TEST = 8000, 2000
_SHAPES_SAMPLE, _STREAM_SAMPLE = 64, 512  # images sampled for mean and standard deviation

_log = logging.getLogger(__name__)

_FOLDERS = {"folder": load_folder, "text_folder": load_text_folder}

__all__ = ["DATASETS", "Entry", "load_splits"]


@dataclass(frozen=True)
class Entry:
    """A data set: a one-line title and the function that loads it."""

    title: str
    load: Callable[[DataConfig], Splits]


DATASETS: Registry[Entry] = Registry("data set")


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
    refuse_options(config)
    if config.name.startswith(HUB_PREFIX):
        _refuse_root(config)
        return hold_out(*load_hub(config), config)
    if by_position and config.name in _FOLDERS:
        return _FOLDERS[config.name](config, by_position=True)
    return DATASETS[config.name].load(config)


def split_arrays(arrays: Arrays, config: DataConfig) -> Splits:
    """Split an in-memory data set and compute the statistics of its training split."""
    height, width = arrays.train_images.shape[-2:]
    if config.image_size is not None and (config.image_size, config.image_size) != (height, width):
        raise ConfigError(
            f"data.image_size must be unset for {config.name}, whose images are {height} x "
            f"{width}, got {config.image_size}; shapes, folder and hf: sets take a size"
        )
    train = Split(arrays.train_labels, arrays.train_images)
    test = Split(arrays.test_labels, arrays.test_images)
    return hold_out(train, test, arrays.class_names, config)


def hold_out(train: Split, test: Split, names: tuple[str, ...], config: DataConfig) -> Splits:
    """Apply `num_train`, `num_test` and folds, hold out validation, and compute statistics."""
    train, test = limit_and_fold(train, test, config)
    train, val = hold_out_validation(train, config)
    _warn_of_missing_classes(val, names)
    sample = _SHAPES_SAMPLE if train.stream is None else _STREAM_SAMPLE
    mean, std = measure_channels(train, sample=sample, workers=config.workers)
    channels, height, width = train.image_shape
    info = DatasetInfo(config.name, len(names), names, (height, width), channels, mean, std)
    return Splits(train, val, test, info)


def _warn_of_missing_classes(val: Split, names: tuple[str, ...]) -> None:
    """Warn if the validation split of a streamed set lacks classes; it is not stratified."""
    missing = len(names) - len(torch.unique(val.labels))
    if val.stream is not None and len(val) and missing:
        _log.warning(
            "%d of %d classes are not in the validation split: a streamed set is split by row "
            "groups and is not stratified",
            missing,
            len(names),
        )


def _load_digits(config: DataConfig) -> Splits:
    _refuse_root(config)
    return split_arrays(load_digits(), config)


def _load_shapes(config: DataConfig) -> Splits:
    _refuse_root(config)
    size = config.image_size or DEFAULT_SIZE
    train = shapes_split(config.num_train or _SHAPES_TRAIN, size, "train")
    test = shapes_split(config.num_test or _SHAPES_TEST, size, "test")
    return hold_out(train, test, SHAPES, config)


def _refuse_root(config: DataConfig) -> None:
    if config.root is not None:
        raise ConfigError(
            f"data.root must be unset for {config.name}, which is not read from files, got "
            f"{str(config.root)!r}"
        )


def _load_source(config: DataConfig) -> Splits:
    """Load a downloadable set from `data.root` if set, else from the cache."""
    return split_arrays(_read_source(config.name, config), config)


def _load_pixels(config: DataConfig) -> Splits:
    return load_pixels(_read_source("cifar10", config), config)


def _load_generated(config: DataConfig) -> Splits:
    _refuse_root(config)
    return load_generated(config)


def _read_source(name: str, config: DataConfig) -> Arrays:
    source = SOURCES[name]
    if config.root is not None:
        return read_local(source, config.root)
    path = cache_path(source.name)
    if not is_cached(path):
        raise DataError(
            f"data set {source.name!r} is not in the cache ({path}): run "
            f"`saccade data fetch {source.name}`, or set data.root to a local copy"
        )
    arrays, metadata = read_cache(path)
    check_cached(source, path, arrays, metadata)
    return arrays


_LOADERS = {
    "digits": _load_digits,
    "shapes": _load_shapes,
    "folder": load_folder,
    "text_folder": load_text_folder,
    "cifar10_pixel": _load_pixels,
    **dict.fromkeys(GENERATED, _load_generated),
    **dict.fromkeys(SOURCES, _load_source),
}
for _name, _title in TITLES.items():
    DATASETS.register(_name, Entry(_title, _LOADERS[_name]))
