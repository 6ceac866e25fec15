"""Decode the idx files of MNIST and Fashion-MNIST, plain or gzipped.

A file consists of two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit integer, and the values.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from saccade.errors import DataError

__all__ = ["IDX_FILES", "decode_idx"]

_UNSIGNED_BYTE = 8
_MAX_BYTES = 256 << 20
IDX_FILES = (
    *("train-images?idx3-ubyte*", "train-labels?idx1-ubyte*"),
    *("t10k-images?idx3-ubyte*", "t10k-labels?idx1-ubyte*"),
)


def decode_idx(files: Mapping[str, bytes]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Decode the training and test set from the four files; images are (N, 1, H, W)."""
    parts = {name[: name.index("s") + 1]: (name, files[name]) for name in sorted(files)}
    train = _images(*parts["train-images"]), _labels(*parts["train-labels"])
    test = _images(*parts["t10k-images"]), _labels(*parts["t10k-labels"])
    return train, test


def _images(name: str, content: bytes) -> Tensor:
    return _read(name, content, dimensions=3)[:, None]


def _labels(name: str, content: bytes) -> Tensor:
    return _read(name, content, dimensions=1).to(torch.int64)


def _read(name: str, content: bytes, dimensions: int) -> Tensor:
    if content[:2] == b"\x1f\x8b":
        content = _gunzip(name, content)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise DataError(
            f"{name}: must be an idx file of unsigned bytes with {dimensions} dimensions"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != expected:
        raise DataError(
            f"{name}: must have {expected} values by its header, got {len(content) - start}"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _gunzip(name: str, content: bytes) -> bytes:
    """Decompress a file, up to the size of the largest known data set."""
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = reader.decompress(content, _MAX_BYTES)
    except zlib.error as error:
        raise DataError(f"{name}: not a readable gzip file ({error})") from None
    if not reader.eof:
        raise DataError(f"{name}: the gzip file is cut short or too large")
    return plain
