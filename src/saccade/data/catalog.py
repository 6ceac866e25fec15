"""The table of data sets, and how a configuration becomes three splits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from saccade.config import DataConfig
from saccade.data.cache import Arrays, cache_path, is_there, read_cache
from saccade.data.digits import load_digits
from saccade.data.fetch import read_local
from saccade.data.folder import load_folder
from saccade.data.hub import HUB_PREFIX, load_hub
from saccade.data.normalisation import measure_channels
from saccade.data.shapes import DEFAULT_SIZE, SHAPES, shapes_split
from saccade.data.sources import SOURCES
from saccade.data.splits import (
    DatasetInfo,
    Split,
    Splits,
    hold_out_validation,
    limit_and_fold,
)
from saccade.data.titles import TITLES
from saccade.errors import ConfigError, DataError
from saccade.registry import Registry

_SHAPES_TRAIN, _SHAPES_TEST = 8000, 2000
_SHAPES_SAMPLE, _STREAM_SAMPLE = 64, 512  # images that mean and spread are taken of

_log = logging.getLogger(__name__)

__all__ = ["DATASETS", "Entry", "load_splits"]


@dataclass(frozen=True)
class Entry:
    """A data set: what it is, in a line, and how it is loaded."""

    title: str
    load: Callable[[DataConfig], Splits]


DATASETS: Registry[Entry] = Registry("data set")


def load_splits(config: DataConfig) -> Splits:
    """Load a data set and hold out its validation split.

    Raises:
        UnknownNameError: There is no data set of this name.
        DataError: The data set is missing or broken.
    """
    if config.name.startswith(HUB_PREFIX):
        _refuse_root(config)
        return hold_out(*load_hub(config), config)
    return DATASETS[config.name].load(config)


def split_arrays(arrays: Arrays, config: DataConfig) -> Splits:
    """Cut an in-memory data set into its splits and measure the training split."""
    height, width = arrays.train_images.shape[-2:]
    if config.image_size is not None and (config.image_size, config.image_size) != (height, width):
        raise ConfigError(
            f"data.image_size={config.image_size}: the images of {config.name} are {height} x "
            f"{width} and stay so; shapes, folder and hf: sets take a size"
        )
    train = Split(arrays.train_labels, arrays.train_images)
    test = Split(arrays.test_labels, arrays.test_images)
    return hold_out(train, test, arrays.class_names, config)


def hold_out(train: Split, test: Split, names: tuple[str, ...], config: DataConfig) -> Splits:
    """Take the subsets asked for, hold out validation and measure what is left to train on."""
    train, test = limit_and_fold(train, test, config)
    train, val = hold_out_validation(train, config)
    _warn_of_missing_classes(val, names)
    sample = _SHAPES_SAMPLE if train.stream is None else _STREAM_SAMPLE
    mean, std = measure_channels(train, sample=sample, workers=config.workers)
    channels, height, width = train.image_shape
    info = DatasetInfo(config.name, len(names), names, (height, width), channels, mean, std)
    return Splits(train, val, test, info)


def _warn_of_missing_classes(val: Split, names: tuple[str, ...]) -> None:
    """Say so where a streamed set, which is not split class by class, leaves some out."""
    missing = len(names) - len(torch.unique(val.labels))
    if val.stream is not None and len(val) and missing:
        _log.warning(
            "%d of %d classes are not in the validation split: a streamed set is split by its "
            "blocks, not by its classes",
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
        raise ConfigError(f"data.root={str(config.root)!r}: {config.name} is not read from files")


def _load_source(config: DataConfig) -> Splits:
    """A downloadable set: the local copy at `data.root`, else the cache."""
    source = SOURCES[config.name]
    if config.root is not None:
        return split_arrays(read_local(source, config.root), config)
    path = cache_path(source.name)
    if not is_there(path):
        raise DataError(
            f"data set {source.name!r} is not in the cache ({path}): run "
            f"`saccade data fetch {source.name}`, or set data.root to a local copy"
        )
    arrays, metadata = read_cache(path)
    if source.sha256 not in {None, metadata["sha256"]}:
        raise DataError(f"{path} is not the true {source.name}: delete it, fetch again")
    return split_arrays(arrays, config)


_LOADERS = {
    "digits": _load_digits,
    "shapes": _load_shapes,
    "folder": load_folder,
    **dict.fromkeys(SOURCES, _load_source),
}
for _name, _title in TITLES.items():
    DATASETS.register(_name, Entry(_title, _LOADERS[_name]))
