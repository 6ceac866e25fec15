"""Read the images that a user names, as inputs of a trained model."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.data.folder_files import find_pictures
from saccade.data.images import (
    MAX_FILE_BYTES,
    BadImageError,
    decode_image,
    load_rgb,
    read_image,
    square,
    to_tensor,
)
from saccade.errors import ConfigError, DataError

__all__ = ["as_input", "decode_pixels", "normalize", "open_picture"]

_CHUNK_BYTES = 1 << 20
LUMA = (0.299, 0.587, 0.114)


def open_picture(name: str, info: DatasetInfo) -> Tensor:
    """Read a file, or `-` for stdin, as the normalized float tensor (C, H, W) of a model."""
    size = max(info.image_size)
    pixels = _read_stdin(size) if name == "-" else read_image(Path(name), size)
    return normalize(_cropped(pixels, info), info)


def decode_pixels(content: bytes, name: str, info: DatasetInfo) -> Tensor:
    """Decode the content of an image file to the uint8 pixels that `open_picture` normalizes.

    Errors use `name` as the name of the file.
    """
    return _cropped(decode_image(content, name, max(info.image_size)), info)


def as_input(image: Image.Image | str | Path | Tensor, info: DatasetInfo) -> Tensor:
    """Convert an image to the normalized float tensor (C, H, W) that a model takes.

    Args:
        image: A PIL image, the path of a file, uint8 pixels (C, H, W), or a normalized float tensor
            (C, H, W), which is returned unchanged.
        info: The data set that the model was trained on.
    """
    size = max(info.image_size)
    if isinstance(image, (str, Path)):
        find_pictures([str(image)])  # raises if the path is missing or not a file
        return normalize(_cropped(read_image(Path(image), size), info), info)
    if isinstance(image, Tensor) and image.is_floating_point() and image.dim() == 3:
        return image
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and _has_colors(image):
        pixels = image.cpu().expand(3, -1, -1).permute(1, 2, 0).contiguous()
        image = Image.fromarray(pixels.numpy())
    if not isinstance(image, Image.Image):
        shape = f" {tuple(image.shape)} of {image.dtype}" if isinstance(image, Tensor) else ""
        raise ConfigError(
            "image must be a PIL image, the path of a file, or a tensor (C, H, W), uint8 with 1 or "
            f"3 channels or normalized floats, got {type(image).__name__}{shape}"
        )
    pixels = to_tensor(square(load_rgb(_copied(image), "that was given"), size))
    return normalize(_cropped(pixels, info), info)


def _has_colors(image: Tensor) -> bool:
    return image.dim() == 3 and image.shape[0] in (1, 3) and image.numel() > 0


def _copied(image: Image.Image) -> Image.Image:
    """A decoded copy, because the later rotation by EXIF data changes the image in place."""
    try:
        return image.copy()
    except Exception as error:  # decoders raise many kinds
        raise DataError(f"bad image: {' '.join(str(error).split())}") from None


def _cropped(pixels: Tensor, info: DatasetInfo) -> Tensor:
    """The center crop of a square (C, size, size) to the size of the model's images."""
    height, width = info.image_size
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    return pixels[:, top : top + height, left : left + width]


def normalize(pixels: Tensor, info: DatasetInfo) -> Tensor:
    """Normalize uint8 pixels (..., C, H, W); RGB becomes gray if the model takes one channel."""
    values = pixels.float() / 255
    if info.channels == 1 and values.shape[-3] == 3:
        values = (values * torch.tensor(LUMA)[:, None, None]).sum(-3, keepdim=True)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (info.mean, info.std))
    return (values - mean) / std


def _read_stdin(size: int) -> Tensor:
    content = bytearray()
    while len(content) <= MAX_FILE_BYTES and (more := sys.stdin.buffer.read(_CHUNK_BYTES)):
        content += more
    try:
        return decode_image(bytes(content), "stdin", size)
    except BadImageError as error:
        raise DataError(f"bad image on stdin: {error.detail}") from None
