"""The idx files of MNIST and its relatives, plain or gzipped.

A file is: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit integer, the values.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from saccade.data.members import MAX_MEMBER_BYTES
from saccade.errors import DataError

__all__ = ["IDX_FILES", "decode_idx"]

_UNSIGNED_BYTE = 8
IDX_FILES = (
    *("train-images?idx3-ubyte*", "train-labels?idx1-ubyte*"),
    *("t10k-images?idx3-ubyte*", "t10k-labels?idx1-ubyte*"),
)


def decode_idx(files: Mapping[str, bytes]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test set, images as (N, 1, H, W), from the four files."""
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
        raise DataError(f"{name}: not an idx file of unsigned bytes in {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    wanted = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != wanted:
        raise DataError(f"{name}: {len(content) - start} values, its header says {wanted}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _gunzip(name: str, content: bytes) -> bytes:
    """Decompress, but no more than a member may hold."""
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = reader.decompress(content, MAX_MEMBER_BYTES)
    except zlib.error as error:
        raise DataError(f"{name}: not a readable gzip file ({error})") from None
    if not reader.eof:
        raise DataError(f"{name}: the gzip file is cut short or too large")
    return plain
