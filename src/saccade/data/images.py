"""One encoded image to pixels: upright, 8-bit RGB, and never more memory than its header allows.

Only common raster formats are opened, so no file can start an interpreter or a document renderer.
Grey, palette, CMYK and 16-bit images become RGB; transparent pixels show white; of an animation the
first frame counts.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from saccade.data.splits import Box
from saccade.errors import DataError

__all__ = [
    "DEFAULT_IMAGE_SIZE",
    "FORMATS",
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "BadImageError",
    "decode_image",
    "load_rgb",
    "opened",
    "printable",
    "read_image",
    "square",
    "to_rgb",
    "to_tensor",
]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
DEFAULT_IMAGE_SIZE = 224
MAX_PIXELS = 89_478_485  # Pillow's own limit, as an error instead of a warning
_WIDE_MODES = frozenset(("I", "I;16", "I;16B", "I;16L", "I;16N", "F"))
_STRIP_PIXELS = 2**18  # of a wide image that are brought to 8 bits at a time

# Pillow warns of what is an error here, and of EXIF data that no pixel depends on.
warnings.filterwarnings("ignore", module=r"PIL\.")

Fault = Literal["zero_byte", "unreadable", "truncated", "too_large", "not_finite"]


class BadImageError(DataError):
    """An image that cannot be read; `fault` says in a word why."""

    def __init__(self, name: Path | str, fault: Fault, detail: str) -> None:
        super().__init__(f"bad image {printable(name)}: {detail}")
        self.fault, self.detail = fault, detail


def printable(name: Path | str) -> str:
    """A name in which characters that would break a line or steer a terminal are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name))


def read_image(path: Path, size: int, box: Box | None = None) -> Tensor:
    """Read a file as uint8 (3, size, size).

    Args:
        path: The file.
        size: Side of the square that comes out.
        box: The crop to take, as fractions; None takes the largest square in the middle.

    Raises:
        BadImageError: The file is empty, no image, cut short or too large, or has pixels that are
            no finite numbers.
    """
    with opened(path) as image:
        return _pixels(image, path, size, box)


def decode_image(content: bytes, name: str, size: int, box: Box | None = None) -> Tensor:
    """Decode what an image file would hold, as `read_image` does; errors call it `name`."""
    with _checked(io.BytesIO(content), name, len(content)) as image:
        return _pixels(image, name, size, box)


def _pixels(image: Image.Image, name: Path | str, size: int, box: Box | None) -> Tensor:
    if image.format == "JPEG" and box is None:
        image.draft("RGB", (2 * size, 2 * size))
    return to_tensor(square(load_rgb(image, name), size, box))


def square(image: Image.Image, size: int, box: Box | None = None) -> Image.Image:
    """Cut a box, or the largest square in the middle, and resize it to `size` x `size`."""
    width, height = image.size
    if box is None:
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        right, bottom = left + side, top + side
    else:
        top, left = box[0] * height, box[1] * width
        right, bottom = min(left + box[3] * width, width), min(top + box[2] * height, height)
    corners = (left, top, right, bottom)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=corners)


def to_tensor(image: Image.Image) -> Tensor:
    """RGB pixels as uint8 (3, H, W)."""
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open a file of a known format whose header promises a bearable size."""
    try:
        num_bytes = path.stat().st_size
    except OSError as error:
        raise BadImageError(path, "unreadable", _reason(error)) from None
    with _checked(path, path, num_bytes) as image:
        yield image


@contextmanager
def _checked(file: Path | io.BytesIO, name: Path | str, num_bytes: int) -> Iterator[Image.Image]:
    if num_bytes == 0:
        raise BadImageError(name, "zero_byte", "the file is empty")
    try:
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError:
        raise BadImageError(name, "too_large", f"more than {MAX_PIXELS} pixels") from None
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise BadImageError(name, "unreadable", f"no image in a known format: {known}") from None
    except (OSError, SyntaxError, ValueError) as error:
        if "decoder object" in str(error) and _is_cut_webp(file, num_bytes):
            raise BadImageError(name, "truncated", "the file is cut short") from None
        raise BadImageError(name, _fault(error), _reason(error)) from None
    with image:
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            detail = f"{image.width} x {image.height} is more than {MAX_PIXELS} pixels"
            raise BadImageError(name, "too_large", detail)
        yield image


def load_rgb(image: Image.Image, name: Path | str) -> Image.Image:
    """Decode an opened image: upright by its EXIF orientation, RGB, first frame."""
    try:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return to_rgb(image)
    except Image.DecompressionBombError:
        raise BadImageError(name, "too_large", f"more than {MAX_PIXELS} pixels") from None
    except FloatingPointError as error:
        raise BadImageError(name, "not_finite", str(error)) from None
    except Exception as error:  # decoders raise many kinds, struct and zlib errors among them
        raise BadImageError(name, _fault(error), _reason(error)) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to 8-bit RGB."""
    if image.mode in _WIDE_MODES:
        return _narrow(image).convert("RGB")
    if image.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")


def _narrow(image: Image.Image) -> Image.Image:
    """Grey values of 16 or more bits to 8; floats are taken as 0..1 where they fit in it."""
    narrow = Image.new("L", image.size)
    scale = _scale(image) if image.mode == "F" else 1 / 257
    for top, values in _strips(image):
        levels = np.clip(values.astype(np.float64) * scale, 0, 255).round().astype(np.uint8)
        narrow.paste(Image.fromarray(levels), (0, top))
    return narrow


def _scale(image: Image.Image) -> float:
    """What brings floats to 0..255."""
    highest = 0.0
    for _, values in _strips(image):
        if not np.isfinite(values).all():
            raise FloatingPointError("pixels that are NaN or infinite")
        highest = max(highest, float(values.max()))
    return 255.0 if highest <= 1 else 1.0


def _strips(image: Image.Image) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of an image, some at a time, and where they begin."""
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        yield top, np.asarray(image.crop((0, top, width, min(top + rows, height))))


def _is_cut_webp(file: Path | io.BytesIO, num_bytes: int) -> bool:
    """Whether a WebP has fewer bytes than its header says."""
    content = file.getvalue() if isinstance(file, io.BytesIO) else file.read_bytes()
    return num_bytes < 8 + int.from_bytes(content[4:8], "little")


def _fault(error: Exception) -> Fault:
    return "truncated" if "truncated" in str(error).lower() else "unreadable"


def _reason(error: Exception) -> str:
    """The error in one line."""
    strerror = getattr(error, "strerror", None)
    return " ".join(str(strerror or error).split()) or type(error).__name__
