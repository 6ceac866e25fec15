"""Parquet files as the Hugging Face hub keeps them: encoded images and integer labels."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.errors import DataError

__all__ = ["PARQUET_FILES", "decode_parquet"]

PARQUET_FILES = ("train*.parquet", "test*.parquet")
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("fine_label", "label")


def decode_parquet(
    files: Mapping[str, bytes],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test set from the files whose names start so, shards in order."""
    train = [_read(name, files[name]) for name in sorted(files) if name.startswith("train")]
    test = [_read(name, files[name]) for name in sorted(files) if name.startswith("test")]
    return _join(train), _join(test)


def _join(shards: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*shards, strict=True)
    return torch.cat(images), torch.cat(labels)


def _read(name: str, content: bytes) -> tuple[Tensor, Tensor]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(
            f"{name}: reading parquet files needs pyarrow: pip install pyarrow"
        ) from None
    try:
        table = parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{name}: not a readable parquet file ({error})") from None
    cells = table.column(_column(name, table.column_names, _IMAGE_COLUMNS)).to_pylist()
    labels = table.column(_column(name, table.column_names, _LABEL_COLUMNS)).to_pylist()
    images = [_decode(f"{name} row {row}", cell) for row, cell in enumerate(cells)]
    return torch.from_numpy(np.stack(images)), torch.tensor(labels, dtype=torch.int64)


def _column(name: str, columns: list[str], accepted: tuple[str, ...]) -> str:
    for column in accepted:
        if column in columns:
            return column
    raise DataError(f"{name}: columns {', '.join(columns)}; wants {' or '.join(accepted)}")


def _decode(where: str, cell: dict[str, bytes]) -> np.ndarray:
    """A cell's image as (C, H, W)."""
    try:
        with Image.open(io.BytesIO(cell["bytes"])) as image:
            pixels = np.asarray(image)
    except (OSError, KeyError, TypeError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: not a readable image ({error})") from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
