"""The table of data sets, and how a configuration becomes three splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.cache import Arrays, cache_path, read_cache
from saccade.data.digits import load_digits
from saccade.data.fetch import read_local
from saccade.data.sources import SOURCES, Source
from saccade.data.splits import (
    DatasetInfo,
    Split,
    Splits,
    channel_statistics,
    select,
    stratified_split,
)
from saccade.errors import DataError
from saccade.registry import Registry

__all__ = ["DATASETS", "Entry", "list_datasets", "load_splits"]


@dataclass(frozen=True)
class Entry:
    """A data set: what it is, in a line, and how it is loaded."""

    title: str
    load: Callable[[DataConfig], Splits]


DATASETS: Registry[Entry] = Registry("data set")


def list_datasets(pattern: str = "*") -> list[str]:
    """The names of the data sets that match a shell pattern, sorted."""
    return DATASETS.names(pattern)


def load_splits(config: DataConfig) -> Splits:
    """Load a data set and hold out its validation split.

    Raises:
        UnknownNameError: There is no data set of this name.
        DataError: The data set is missing or broken.
    """
    return DATASETS[config.name].load(config)


def split_arrays(arrays: Arrays, config: DataConfig) -> Splits:
    """Cut an in-memory data set into its splits and measure the training split."""
    train = Split(arrays.train_labels, arrays.train_images)
    test = Split(arrays.test_labels, arrays.test_images)
    if config.num_train is not None:
        train = select(train, first_of(train.labels, config.num_train, config.split_seed))
    if config.num_test is not None:
        test = select(test, first_of(test.labels, config.num_test, config.split_seed))
    kept, held = stratified_split(train.labels, config.val_fraction, config.split_seed)
    train, val = select(train, kept), select(train, held)
    assert train.images is not None
    if not len(train):
        raise DataError(f"data set {config.name!r}: no training images are left")
    mean, std = channel_statistics(train.images)
    _, channels, height, width = train.images.shape
    names = arrays.class_names
    info = DatasetInfo(config.name, len(names), names, (height, width), channels, mean, std)
    return Splits(train, val, test, info)


def first_of(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of a stratified subset of about `count` samples; all where there are fewer."""
    if count >= len(labels):
        return torch.arange(len(labels))
    return stratified_split(labels, count / len(labels), seed)[1]


def _load_source(source: Source, config: DataConfig) -> Splits:
    """A downloadable set: the local copy at `data.root`, else the cache."""
    if config.root is not None:
        return split_arrays(read_local(source, config.root), config)
    path = cache_path(source.name)
    if not path.exists():
        raise DataError(
            f"data set {source.name!r} is not in the cache ({path}): run "
            f"`saccade data fetch {source.name}`, or set data.root to a local copy"
        )
    arrays, metadata = read_cache(path)
    if source.sha256 is not None and metadata.get("sha256") != source.sha256:
        raise DataError(f"{path} is not the true {source.name}: delete it, fetch again")
    return split_arrays(arrays, config)


DATASETS.register(
    "digits",
    Entry(
        "1797 handwritten digits, 8 x 8, 10 classes (scikit-learn; no download)",
        lambda config: split_arrays(load_digits(), config),
    ),
)
for _name in SOURCES:
    DATASETS.register(
        _name,
        Entry(SOURCES[_name].title, lambda config: _load_source(SOURCES[config.name], config)),
    )
