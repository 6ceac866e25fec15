"""Write tensors to a safetensors file with the usual permissions; parse such a file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from saccade.errors import ConfigError
from saccade.io import parse_json

__all__ = ["parse_tensors", "write_tensors"]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file whose permissions follow the umask.

    Args:
        tensors: Contiguous tensors by name; no two may share memory.
        path: The file.
        metadata: Text to store with the tensors.

    Raises:
        OSError: The disk is full or cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode  # follows the umask; safetensors creates files with mode 0600
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:  # raised for a full disk, among others
        number = re.search(r"\(os error (\d+)\)", str(error))
        details = (int(number[1]), os.strerror(int(number[1]))) if number else (str(error),)
        raise OSError(*details) from None
    path.chmod(mode)


def parse_tensors(content: bytearray) -> dict[str, Tensor]:
    """The tensors of a safetensors file; they share the memory of `content`.

    Unlike `safetensors.torch.load`, which copies them in compiled code, this raises MemoryError if
    memory runs out.

    Raises:
        ConfigError: It is not a complete safetensors file.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or start > len(content):
        raise ConfigError("its header is cut short")
    try:
        header = parse_json(content[8:start].decode(), "its header")
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        entries.sort(key=lambda item: item[1]["data_offsets"])
        ends = [start, *(start + entry["data_offsets"][1] for _, entry in entries)]
        tensors = {
            name: _view(content, entry, start, begin, end)
            for (name, entry), (begin, end) in zip(entries, pairwise(ends), strict=True)
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ConfigError(str(error) or "its header is damaged") from None
    if ends[-1] != len(content):
        raise ConfigError("it is cut short or too long")
    return tensors


def _view(content: bytearray, entry: dict[str, Any], start: int, begin: int, end: int) -> Tensor:
    """The tensor in a part of a file; each begins where the one before it ends."""
    dtype, shape = DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
    count = math.prod(shape)
    fits = entry["data_offsets"] == [begin - start, end - start] and end <= len(content)
    if not fits or min(shape, default=0) < 0 or count * dtype.itemsize != end - begin:
        raise ValueError("a tensor does not fit its place")
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=begin).view(shape)
