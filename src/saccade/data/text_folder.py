"""Load a user's text files: one sub-folder per class, or split folders that have them.

The layouts are those of a folder of images (`saccade.data.folder`). A text is a sequence of its
bytes; longer ones are cut to `data.options.max_length`. Files without a `test` or `val` folder are
held out by a hash of their names.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.folder import split_parts
from saccade.data.folder_files import class_names, labeled_images, names_in, split_folders
from saccade.data.images import printable
from saccade.data.sequence_sets import task_options
from saccade.data.splits import (
    DatasetInfo,
    Split,
    Splits,
    select,
)
from saccade.data.stratify import TEST_FRACTION, TEST_SEED, hold_out_by_name, name_draws
from saccade.errors import ConfigError, DataError
from saccade.io import check_regular

__all__ = ["TEXT_SUFFIXES", "load_text_folder", "read_text_bytes"]

TEXT_SUFFIXES = frozenset((".txt", ".text", ".md"))
_log = logging.getLogger(__name__)


def load_text_folder(config: DataConfig) -> Splits:
    """Load the splits of the text files at `data.root`.

    Raises:
        ConfigError: `data.root` is not set, or an option is invalid.
        DataError: The folder is missing or has fewer than two classes, or a file is empty, no text
            or unreadable.
    """
    if config.root is None:
        raise ConfigError(
            "data.root must be the path of a folder for data.name='text_folder', got None"
        )
    length = task_options(config)["max_length"]
    folders = split_folders(config.root)
    names = class_names(folders["train"])
    read = {part: _read_part(config, folder, names, length) for part, folder in folders.items()}

    def hold_out_test(train: Split) -> tuple[Split, Split]:
        draws = name_draws(read["train"][1], "test", TEST_SEED)
        kept, held = hold_out_by_name(train.labels, draws, TEST_FRACTION)
        return select(train, kept), select(train, held)

    parts = {part: split for part, (split, _) in read.items()}
    train, val, test = split_parts(parts, config, "texts", hold_out_test)
    root = config.root.absolute()
    name = printable(root.name) or "text_folder"
    info = DatasetInfo(
        name, len(names), names, (1, length), 1, (0.0,), (1.0,), "bytes", 256, pad_symbol=0
    )
    return Splits(train, val, test, info)


def _read_part(
    config: DataConfig, folder: Path, names: tuple[str, ...], length: int
) -> tuple[Split, tuple[str, ...]]:
    """Return the texts of a split folder, and their names."""
    assert config.root is not None
    paths, labels = labeled_images(folder, names, TEXT_SUFFIXES, "text file")
    texts: list[NDArray[np.uint8]] = []
    kept: list[int] = []
    faults: list[DataError] = []
    for place, path in enumerate(paths):
        try:
            texts.append(read_text_bytes(Path(path)))
            kept.append(place)
        except DataError as fault:
            if config.on_bad_image == "fail":
                raise
            faults.append(fault)
    if len(faults) > config.max_bad_images:
        raise DataError(
            f"{faults[0]}; {len(faults)} files cannot be used, more than "
            f"data.max_bad_images={config.max_bad_images}"
        )
    if faults:
        _log.warning("skipped %d text file(s): %s", len(faults), faults[0])
    if long := sum(len(text) > length for text in texts):
        _log.warning(
            "%d of %d texts in %s are longer than data.options.max_length=%d bytes and are cut",
            long,
            len(texts),
            printable(folder),
            length,
        )
    symbols, lengths = _padded(texts, length)
    split = Split(torch.tensor(labels)[kept], symbols, lengths=lengths)
    return split, names_in(config.root, [paths[place] for place in kept])


def read_text_bytes(path: Path) -> NDArray[np.uint8]:
    """The bytes of a text file.

    Raises:
        DataError: The file is missing, empty or no text.
    """
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror or error}") from None
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


def _padded(texts: list[NDArray[np.uint8]], length: int) -> tuple[Tensor, Tensor]:
    """Bytes (N, L), filled with 0, and the lengths."""
    lengths = [min(length, len(text)) for text in texts]
    symbols = np.zeros((len(texts), length), np.uint8)
    for row, text in enumerate(texts):
        symbols[row, : lengths[row]] = text[:length]
    return torch.from_numpy(symbols), torch.tensor(lengths, dtype=torch.int64)
