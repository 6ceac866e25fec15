"""Load a user's text files: one sub-folder per class, or split folders that have them.

The layouts are those of a folder of images (`saccade.data.folder`). Texts are held out by a hash of
their names, too. A text is a sequence of its bytes; longer ones are cut to
`data.options.max_length`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit, skip_bad_image
from saccade.data.folder_files import class_names, labeled_images, names_in, split_folders
from saccade.data.images import MAX_FILE_BYTES, printable
from saccade.data.sequence_sets import task_options
from saccade.data.splits import (
    DatasetInfo,
    LeftOut,
    NamedFiles,
    Split,
    Splits,
    divide,
    hold_out_validation,
    limit_and_fold,
    select,
)
from saccade.data.stratify import TEST_FRACTION, TEST_SEED
from saccade.errors import ConfigError, DataError
from saccade.io import read_bytes

__all__ = ["TEXT_SUFFIXES", "load_text_folder", "read_text_bytes", "read_text_parts"]

TEXT_SUFFIXES = frozenset((".txt", ".text", ".md"))
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """The texts of one split folder; unreadable ones have a place, with the byte 0 as content."""

    split: Split
    unreadable: Mapping[str, LeftOut]


def load_text_folder(config: DataConfig, *, by_position: bool = False) -> Splits:
    """Load the splits of the text files at `data.root`.

    Args:
        config: The folder and its options.
        by_position: Hold out validation texts, folds and subsets by position, for runs that did not
            record the names of their texts.

    Raises:
        ConfigError: `data.root` is not set, or an option is invalid.
        DataError: The folder is missing or has fewer than two classes, or a file is empty, too
            large, no text or unreadable.
    """
    loaded, names = _read_parts(config)
    bad = {name: item for part in loaded.values() for name, item in part.unreadable.items()}
    parts = {
        part: _readable(one.split, bad) if by_position else one.split
        for part, one in loaded.items()
    }
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
    train = parts["train"]
    if "test" not in parts:
        train, parts["test"] = divide(train, TEST_FRACTION, TEST_SEED, "test")
    if by_position:
        train, parts["test"] = replace(train, named=None), replace(parts["test"], named=None)
    train, test = limit_and_fold(train, parts["test"], config)
    if "val" in parts:
        val = parts["val"]
    else:
        train, val = hold_out_validation(train, config)
    used = _names(train, val, test)
    train, val, test = (_readable(split, bad) for split in (train, val, test))
    if not len(train) or not len(test):
        raise DataError(
            f"{printable(config.root or '')}: {len(train) + len(test)} texts in {len(names)} "
            "classes are too few to hold out test texts; add texts or a test folder"
        )
    unused = _names(*(one.split for one in loaded.values())) - used
    return Splits(train, val, test, _info(config, names), tuple(sorted(unused)))


def read_text_parts(config: DataConfig) -> tuple[dict[str, Split], tuple[str, ...]]:
    """The texts of each split folder without unreadable ones, and the names of the classes."""
    parts, names = _read_parts(config)
    return {part: _readable(one.split, one.unreadable) for part, one in parts.items()}, names


def _info(config: DataConfig, names: tuple[str, ...]) -> DatasetInfo:
    assert config.root is not None
    length = task_options(config)["max_length"]
    name = printable(config.root.absolute().name) or "text_folder"
    return DatasetInfo(
        name, len(names), names, (1, length), 1, (0.0,), (1.0,), "bytes", 256, pad_symbol=0
    )


def _names(*splits: Split) -> set[str]:
    return {name for split in splits if split.named is not None for name in split.named.names}


def _readable(split: Split, bad: Mapping[str, LeftOut]) -> Split:
    """The split without the texts that could not be read, which it counts as left out."""
    if split.named is None or not bad:
        return split
    names = split.named.names
    kept = [place for place, name in enumerate(names) if name not in bad]
    left_out = tuple(bad[name] for name in names if name in bad)
    return replace(select(split, torch.tensor(kept, dtype=torch.int64)), left_out=left_out)


def _read_parts(config: DataConfig) -> tuple[dict[str, _Part], tuple[str, ...]]:
    if config.root is None:
        raise ConfigError(
            "data.root must be the path of a folder for data.name='text_folder', got None"
        )
    length = task_options(config)["max_length"]
    folders = split_folders(config.root)
    names = class_names(folders["train"])
    return {part: _read_part(config, at, names, length) for part, at in folders.items()}, names


def _read_part(config: DataConfig, folder: Path, names: tuple[str, ...], length: int) -> _Part:
    assert config.root is not None
    paths, labels = labeled_images(folder, names, TEXT_SUFFIXES, "text file")
    below = names_in(config.root, paths)
    symbols = np.zeros((len(paths), length), np.uint8)
    lengths = torch.ones(len(paths), dtype=torch.int64)
    unreadable: dict[str, LeftOut] = {}
    num_long = 0
    for place, path in enumerate(paths):
        try:
            text = read_text_bytes(Path(path))
        except DataError as fault:
            unreadable[below[place]] = LeftOut(str(fault), path, below[place])
            faults = [item.message for item in unreadable.values()]
            skip_bad_image(faults, bad_image_limit(config))
            continue
        num_long += len(text) > length
        lengths[place] = min(length, len(text))
        symbols[place, : lengths[place]] = text[:length]
    if num_long:
        _log.warning(
            "%d of %d texts in %s are longer than data.options.max_length=%d bytes and are cut",
            num_long,
            len(paths),
            printable(folder),
            length,
        )
    named = NamedFiles(tuple(paths), below)
    split = Split(torch.tensor(labels), torch.from_numpy(symbols), lengths=lengths, named=named)
    return _Part(split, unreadable)


def read_text_bytes(path: Path) -> NDArray[np.uint8]:
    """The bytes of a text file.

    Raises:
        DataError: The file is missing, empty, too large or no text.
    """
    content = read_bytes(path, limit=MAX_FILE_BYTES, kind=DataError)
    if not content.strip():
        raise DataError(f"{printable(path)} is empty: a text must have at least one character")
    place = content.find(0)
    if place < 0:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            place = error.start
    if place >= 0:
        raise DataError(
            f"{printable(path)} must be a text in UTF-8, got byte 0x{content[place]:02x} at "
            f"position {place}"
        )
    return np.frombuffer(content, np.uint8)
