"""Load a user's folder of images: one sub-folder per class, or split folders that have them.

- `train/`, `val/`, `test/`: used as they are.
- `train/`, `test/`: validation is held out of `train/`.
- `train/`, `val/`: `val/` is the test set, validation is held out of `train/`.
- classes only: a fixed fifth of each class is the test set, validation is held out of the rest.

Images are held out by a hash of their names (`named_splits`), and a run records its split.

It is an error if all sub-folders look like splits but form none of these layouts, for example
`Train/` and `Test/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit
from saccade.data.decoding import measure_channels
from saccade.data.folder_files import class_names, labeled_images, names_in, split_folders
from saccade.data.images import DEFAULT_IMAGE_SIZE, printable, read_image
from saccade.data.splits import (
    Box,
    DatasetInfo,
    Split,
    Splits,
    divide,
    hold_out_validation,
    limit_and_fold,
)
from saccade.data.stratify import TEST_FRACTION, TEST_SEED
from saccade.errors import ConfigError, DataError

__all__ = [
    "FolderSource",
    "load_folder",
    "read_folder_parts",
    "split_parts",
]

_STATISTICS_IMAGES = 512


@dataclass(frozen=True)
class FolderSource:
    """Image files, decoded when they are read.

    Attributes:
        paths: Path of each image.
        names: Paths relative to the data set's folder, with `/` as the separator.
        size: Side in pixels of the square images that are returned.
        max_bad_images: Number of unreadable files that may be skipped.
        is_split_by_name: False to split by position, for old runs that did not record their split.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...]
    size: int
    max_bad_images: int = 0
    is_split_by_name: bool = True

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Image `index` as uint8 (3, size, size)."""
        return read_image(Path(self.paths[index]), self.size, box)

    def placeholder(self) -> Tensor:
        """A black image."""
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def select(self, index: Tensor) -> FolderSource:
        """Return the source of a subset of the images."""
        places = index.tolist()
        paths, names = (tuple(of[i] for i in places) for of in (self.paths, self.names))
        return replace(self, paths=paths, names=names)


def load_folder(config: DataConfig, *, by_position: bool = False) -> Splits:
    """Load the splits of the folder at `data.root`.

    Args:
        config: The folder and its options.
        by_position: Hold out by position instead of name, for old runs that did not record their
            split.

    Raises:
        ConfigError: `data.root` is not set.
        DataError: The folder is missing, a folder in it cannot be read, its split folders have
            other names, it has fewer than two classes, or a class or split has no images.
    """
    loaded, names = read_folder_parts(config)
    parts = {part: _by_position(split) if by_position else split for part, split in loaded.items()}
    train, val, test = split_parts(
        parts, config, "images", lambda train: divide(train, TEST_FRACTION, TEST_SEED, "test")
    )
    unused = _names(*loaded.values()) - _names(train, val, test)
    return Splits(train, val, test, _info(train, names, config), tuple(sorted(unused)))


def split_parts(
    parts: Mapping[str, Split],
    config: DataConfig,
    what: str,
    hold_out_test: Callable[[Split], tuple[Split, Split]],
) -> tuple[Split, Split, Split]:
    """Return the training, validation and test split of the split folders.

    Args:
        parts: What is in each split folder; `val` is the test set if there is no `test`.
        config: The folder and its options.
        what: What the files are, in the plural.
        hold_out_test: Splits the training files into the rest and the test set.
    """
    train, val, test = (parts.get(part) for part in ("train", "val", "test"))
    assert train is not None
    if test is None:
        val, test = None, val
    if test is None:
        train, test = hold_out_test(train)
    train, test = limit_and_fold(train, test, config)
    if not len(test):
        classes = len(set(parts["train"].labels.tolist()))
        raise DataError(
            f"{printable(config.root or '')}: {len(train)} {what} in {classes} classes are too few "
            f"to hold out test {what}; add {what} or a test folder"
        )
    if val is None:
        train, val = hold_out_validation(train, config)
    return train, val, test


def _names(*splits: Split) -> set[str]:
    return {name for split in splits if split.files is not None for name in split.files.names}


def _size(config: DataConfig) -> int:
    return config.image_size or DEFAULT_IMAGE_SIZE


def read_folder_parts(config: DataConfig) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Return the images of each split folder, and the names of the classes."""
    if config.root is None:
        raise ConfigError("data.root must be the path of a folder for data.name='folder', got None")
    folders = split_folders(config.root)
    names = class_names(folders["train"])
    parts = {part: _read_split(folder, names, config) for part, folder in folders.items()}
    return parts, names


def _by_position(split: Split) -> Split:
    assert isinstance(split.source, FolderSource)
    return replace(split, source=replace(split.source, is_split_by_name=False))


def _read_split(folder: Path, names: tuple[str, ...], config: DataConfig) -> Split:
    paths, labels = labeled_images(folder, names)
    assert config.root is not None
    names_below = names_in(config.root, paths)
    source = FolderSource(tuple(paths), names_below, _size(config), bad_image_limit(config))
    return Split(torch.tensor(labels, dtype=torch.int64), source=source)


def _info(train: Split, names: tuple[str, ...], config: DataConfig) -> DatasetInfo:
    size = _size(config)
    mean, std = measure_channels(train, sample=_STATISTICS_IMAGES, workers=config.workers)
    assert config.root is not None
    root = config.root.absolute()
    name = (root.resolve() if root.name == ".." else root).name
    return DatasetInfo(printable(name) or "folder", len(names), names, (size, size), 3, mean, std)
