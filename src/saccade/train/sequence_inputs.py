"""Read the sequences that a user names, as inputs of a trained sequence model.

A file is read as the kind of the data asks: the bytes of a text, the gray levels of an image, or
the names of symbols with spaces between them, such as `[MAX 4 [MIN 2 3 ] ]`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.data.images import printable, read_image
from saccade.data.sequence_sets import gray_levels
from saccade.data.text_folder import read_text_bytes
from saccade.errors import ConfigError, DataError, near_matches, shorten

__all__ = ["as_sequence", "open_sequence"]


def open_sequence(name: str | Path, info: DatasetInfo) -> Tensor:
    """Read a file as symbols (N,), int64.

    Raises:
        DataError: The file cannot be read, or is no input of a model for this data.
    """
    path = Path(name)
    if info.kind == "pixels":
        side = math.isqrt(info.max_length)
        return gray_levels(read_image(path, side)[None])[0].long()
    content = read_text_bytes(path)
    if info.kind == "bytes":
        return torch.from_numpy(content[: info.max_length].copy()).long()
    places = {symbol: place for place, symbol in enumerate(info.symbols)}
    found = []
    for word in content.tobytes().decode().split():
        if word not in places:
            near = near_matches(word, info.symbols)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise DataError(
                f"{printable(path)} must have symbols of {info.name}, got "
                f"{shorten(repr(word), 60)}{hint}"
            )
        found.append(places[word])
    try:
        return as_sequence(found, info)
    except ConfigError as error:
        raise DataError(f"{printable(path)}: {error}") from None


def as_sequence(given: object, info: DatasetInfo) -> Tensor:
    """Convert symbols, or the path of a file, to the input (N,) of a sequence model.

    Raises:
        ConfigError: It has the wrong length, or symbols that the data does not have.
    """
    if isinstance(given, (str, Path)):
        return open_sequence(given, info)
    if not isinstance(given, (Tensor, list, tuple)):
        raise ConfigError(
            f"a sequence must be symbols or the path of a file, got {type(given).__name__}"
        )
    symbols: Any = torch.as_tensor(given)
    if symbols.dim() != 1 or symbols.is_floating_point() or not len(symbols):
        raise ConfigError(
            f"a sequence must be integers of shape (tokens,), got {symbols.dtype} of shape "
            f"{tuple(symbols.shape)}"
        )
    is_fixed, longest = info.pad_symbol is None, info.max_length
    if len(symbols) > longest or (is_fixed and len(symbols) != longest):
        wanted = f"{longest}" if is_fixed else f"at most {longest}"
        raise ConfigError(f"a sequence must have {wanted} symbols, got {len(symbols)}")
    low, high = int(symbols.min()), int(symbols.max())
    if low < 0 or high >= info.num_symbols:
        raise ConfigError(
            f"a sequence must have symbols from 0 to {info.num_symbols - 1}, got "
            f"{low if low < 0 else high}"
        )
    found: Tensor = symbols.long()
    return found
