"""Decode parquet files of the Hugging Face hub, with encoded images and integer labels."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.data.archives import MAX_MEMBER_BYTES
from saccade.data.images import BadImageError, opened_bytes
from saccade.data.labels import label_tensor
from saccade.errors import DataError

__all__ = ["PARQUET_FILES", "decode_parquet"]

PARQUET_FILES = ("train*.parquet", "test*.parquet")
_IMAGE_COLUMNS = ("img", "image")
_MAX_ROWS = 200_000
_LABEL_COLUMNS = ("fine_label", "label")


def decode_parquet(
    files: Mapping[str, bytes],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Decode the training and test set from the files that start with `train` and `test`."""
    return _join("train", files), _join("test", files)


def _join(part: str, files: Mapping[str, bytes]) -> tuple[Tensor, Tensor]:
    images: list[np.ndarray] = []
    labels: list[object] = []
    for name in sorted(name for name in files if name.startswith(part)):
        more_images, more_labels = _read(name, files[name])
        images += more_images
        labels += more_labels
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        found = f"images of {len(shapes)} sizes" if shapes else "no images"
        raise DataError(f"{part}*.parquet must have images of one size, got {found}")
    return torch.from_numpy(np.stack(images)), label_tensor(f"{part}*.parquet", labels)


def _read(name: str, content: bytes) -> tuple[list[np.ndarray], list[object]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{name}: reading parquet files needs pyarrow: pip install pyarrow"
        ) from None
    try:
        _check_size(name, parquet.read_metadata(io.BytesIO(content)))
        table = parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{name}: not a readable parquet file ({error})") from None
    cells = table.column(_column(name, table.column_names, _IMAGE_COLUMNS)).to_pylist()
    labels = table.column(_column(name, table.column_names, _LABEL_COLUMNS)).to_pylist()
    return [_decode(f"{name} row {row}", cell) for row, cell in enumerate(cells)], labels


def _check_size(name: str, metadata: Any) -> None:
    """Raise an error if the metadata describes too large a file, before it is decompressed."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    num_bytes = sum(group.total_byte_size for group in groups)
    if metadata.num_rows > _MAX_ROWS or num_bytes > MAX_MEMBER_BYTES:
        raise DataError(
            f"{name}: {metadata.num_rows:,} rows of {num_bytes:,} bytes are more than the "
            f"{_MAX_ROWS:,} rows of {MAX_MEMBER_BYTES:,} bytes that are read"
        )


def _column(name: str, columns: list[str], accepted: tuple[str, ...]) -> str:
    for column in accepted:
        if column in columns:
            return column
    raise DataError(f"{name} must have a column {' or '.join(accepted)}, got {', '.join(columns)}")


def _decode(where: str, cell: dict[str, bytes]) -> np.ndarray:
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
