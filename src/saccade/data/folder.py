"""A user's folder of images: one sub-folder a class, or `train/`, `val/`, `test/` of such.

- `train/`, `val/`, `test/`: taken as they are.
- `train/`, `test/`: validation is held out of `train/`.
- `train/`, `val/`: `val/` is kept for the end as the test set, validation is held out of `train/`.
- classes only: a fixed stratified fifth is the test set, validation is held out of the rest.

Sub-folders that all look like splits but are none of these (`Train/`, `Test/`) are refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit
from saccade.data.images import (
    DEFAULT_IMAGE_SIZE,
    IMAGE_SUFFIXES,
    printable,
    read_image,
)
from saccade.data.normalisation import measure_channels
from saccade.data.splits import (
    TEST_FRACTION,
    TEST_SEED,
    Box,
    DatasetInfo,
    Split,
    Splits,
    divide,
    hold_out_validation,
    limit_and_fold,
)
from saccade.errors import ConfigError, DataError

__all__ = ["FolderSource", "load_folder", "scan", "split_folders", "subfolders"]

_STATISTICS_IMAGES = 512
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
_LIKE_SPLITS = frozenset(name for names in _SPLIT_NAMES.values() for name in names) | {"testing"}


@dataclass(frozen=True)
class FolderSource:
    """Image files, decoded when asked for.

    Attributes:
        paths: One for each image.
        size: Side of the square they are brought to.
        max_bad_images: Unreadable files that are passed over; 0 passes over none.
    """

    paths: tuple[str, ...]
    size: int
    max_bad_images: int = 0

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Image `index` as uint8 (3, size, size)."""
        return read_image(Path(self.paths[index]), self.size, box)

    def placeholder(self) -> Tensor:
        """A black image."""
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def select(self, index: Tensor) -> FolderSource:
        """The source of only these images."""
        paths = tuple(self.paths[i] for i in index.tolist())
        return FolderSource(paths, self.size, self.max_bad_images)


def load_folder(config: DataConfig) -> Splits:
    """The splits of the folder at `data.root`.

    Raises:
        ConfigError: `data.root` is not set.
        DataError: The folder is missing, has splits of other names, fewer than two classes, or a
            class or a split without images, or a folder in it may not be read.
    """
    if config.root is None:
        raise ConfigError("data.root is not set: data.name='folder' wants the path of the folder")
    folders = split_folders(config.root)
    names = class_names(folders["train"])
    parts = {part: _read_split(folder, names, config) for part, folder in folders.items()}
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
    train = parts["train"]
    if "test" not in parts:
        train, parts["test"] = divide(train, TEST_FRACTION, TEST_SEED)
    train, test = limit_and_fold(train, parts["test"], config)
    if not len(test):
        raise DataError(
            f"{printable(config.root)}: with {len(train)} images in {len(names)} classes none is "
            "left to test on; take more images, or add a test folder"
        )
    if "val" in parts:
        val = parts["val"]
    else:
        train, val = hold_out_validation(train, config)
    return Splits(train, val, test, _info(train, names, config))


def split_folders(root: Path) -> dict[str, Path]:
    """Which folder holds which split; the root itself is `train` where there are none.

    Raises:
        DataError: There is no such folder, it may not be read, or all of its sub-folders look like
            splits and do not make a layout that is accepted.
    """
    present = subfolders(root)
    found = {}
    for part, accepted in _SPLIT_NAMES.items():
        if name := next((name for name in accepted if name in present), None):
            found[part] = root / name
    understood = "train" in found and len(found) == len(present)
    if present and not understood and all(name.lower() in _LIKE_SPLITS for name in present):
        raise DataError(
            f"{str(root)!r}: the sub-folders {', '.join(map(repr, present))} look like splits, not "
            "classes; accepted: 'train', with or without 'val' and 'test', in lower case and one "
            "of each, or one sub-folder a class"
        )
    return found if "train" in found else {"train": root}


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the sub-folders, sorted; fewer than two are an error."""
    names = tuple(subfolders(folder))
    if len(names) < 2:
        what = f"only the class {names[0]!r}" if names else "no sub-folder"
        raise DataError(
            f"{printable(folder)}: {what}; wants at least two classes, one sub-folder each"
        )
    return names


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, hidden ones left out."""
    try:
        return sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] != ".")
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    reasons = {errno.ENOENT: "no such folder", errno.ENOTDIR: "not a folder"}
    reason = reasons.get(error.errno or 0, f"the folder cannot be read: {error.strerror}")
    raise DataError(f"{str(error.filename)!r}: {reason}") from None


def scan(folder: Path, on_error: Callable[[OSError], object] = _refuse) -> list[Path]:
    """All files below a folder, sorted, hidden ones left out.

    Links to folders are followed; a folder that several names lead to is entered once.

    Args:
        folder: Where to begin.
        on_error: Called for every folder that cannot be read; raises a `DataError` by default.
    """
    found: list[Path] = []
    entered: set[Path] = set()
    for where, folders, files in os.walk(folder, onerror=on_error, followlinks=True):
        real = Path(where).resolve()
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [Path(where, name) for name in files if name[0] != "."]
    return sorted(found)


def _read_split(folder: Path, names: tuple[str, ...], config: DataConfig) -> Split:
    present = set(subfolders(folder))
    unknown = present - set(names)
    if unknown:
        raise DataError(f"{printable(folder)}: class {min(unknown)!r} has no training images")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if name not in present:
            continue
        images = [p for p in scan(folder / name) if p.suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            raise DataError(f"class {name!r} is empty: no image in {printable(folder / name)}")
        paths += map(str, images)
        labels += [label] * len(images)
    if not paths:
        raise DataError(
            f"{printable(folder)}: no class in it; wants sub-folders such as {names[0]!r} with "
            "images, or take the folder away"
        )
    size = config.image_size or DEFAULT_IMAGE_SIZE
    source = FolderSource(tuple(paths), size, bad_image_limit(config))
    return Split(torch.tensor(labels, dtype=torch.int64), source=source)


def _info(train: Split, names: tuple[str, ...], config: DataConfig) -> DatasetInfo:
    size = config.image_size or DEFAULT_IMAGE_SIZE
    mean, std = measure_channels(train, sample=_STATISTICS_IMAGES, workers=config.workers)
    return DatasetInfo("folder", len(names), names, (size, size), 3, mean, std)
