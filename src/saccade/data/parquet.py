"""Parquet files as the Hugging Face hub keeps them: encoded images and integer labels."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.labels import label_tensor
from saccade.errors import DataError

__all__ = ["PARQUET_FILES", "decode_parquet"]

PARQUET_FILES = ("train*.parquet", "test*.parquet")
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("fine_label", "label")


def decode_parquet(
    files: Mapping[str, bytes],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test set from the files whose names start so, shards in order."""
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
        raise DataError(f"{part}*.parquet: {found}, wants images of one size")
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
        table = parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{name}: not a readable parquet file ({error})") from None
    cells = table.column(_column(name, table.column_names, _IMAGE_COLUMNS)).to_pylist()
    labels = table.column(_column(name, table.column_names, _LABEL_COLUMNS)).to_pylist()
    return [_decode(f"{name} row {row}", cell) for row, cell in enumerate(cells)], labels


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
    except Exception as error:  # a broken image can raise nearly anything
        raise DataError(f"{where}: not a readable image ({error})") from None
    if pixels.dtype != np.uint8:
        raise DataError(f"{where}: pixels of {pixels.dtype}, wants uint8")
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
