"""Decode an image to upright 8-bit RGB pixels, with bounded memory.

The size of the file, the number of pixels and the memory for decoding are known from the header.
Too large an image is refused before it is decoded. Only regular files are opened.

Only common raster formats are opened, so no file can start an interpreter or a document renderer.
Gray, palette, CMYK and 16-bit images are converted to RGB. Transparent pixels become white. The
first frame of an animation is used.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from saccade.errors import DataError
from saccade.io import escape_for_terminal, open_regular

if TYPE_CHECKING:
    from torch import Tensor

    from saccade.data.splits import Box

__all__ = [
    "DEFAULT_IMAGE_SIZE",
    "FORMATS",
    "IMAGE_SUFFIXES",
    "MAX_FILE_BYTES",
    "MAX_MEMORY_BYTES",
    "MAX_PIXELS",
    "BadImageError",
    "decode_image",
    "hash_file",
    "load_rgb",
    "opened",
    "opened_bytes",
    "printable",
    "read_image",
    "read_square",
    "square",
    "to_rgb",
    "to_tensor",
]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
DEFAULT_IMAGE_SIZE = 224
MAX_PIXELS = 89_478_485  # Pillow's limit, where it only warns
MAX_FILE_BYTES = 257 << 20  # an uncompressed RGB image of MAX_PIXELS and its header
MAX_MEMORY_BYTES = 512 << 20
_WEBP_PIXEL_BYTES = 12  # internal buffers of the decoder
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes per pixel in Pillow, by mode; every other mode takes four."""
_ORIENTATION = 274  # EXIF tag
_WIDE_MODES = frozenset(("I", "I;16", "I;16B", "I;16L", "I;16N", "F"))
_ALPHA_MODES = frozenset(("RGBA", "LA", "PA", "La", "RGBa"))
_STRIP_PIXELS = 2**18  # pixels converted at a time

# Pillow warns about images that are errors here, and about EXIF data that does not affect pixels.
warnings.filterwarnings("ignore", module=r"PIL\.")

Fault = Literal["zero_byte", "unreadable", "truncated", "too_large", "not_finite"]


class BadImageError(DataError):
    """An image that cannot be read; `fault` is the reason as one of the words of `Fault`."""

    def __init__(self, name: Path | str, fault: Fault, detail: str) -> None:
        super().__init__(f"bad image {printable(name)}: {detail}")
        self.fault, self.detail = fault, detail


def printable(name: Path | str) -> str:
    """Escape the line breaks and terminal control characters in a name."""
    return escape_for_terminal(str(name))


def read_image(path: Path, size: int, box: Box | None = None) -> Tensor:
    """Read a file as uint8 (3, size, size).

    Args:
        path: The file.
        size: Side of the returned square.
        box: The crop, as fractions of the image; None takes the largest centered square.

    Raises:
        BadImageError: The file is empty, not an image, truncated or too large, or has NaN or
            infinite pixels.
    """
    with opened(path) as image:
        return to_tensor(read_square(image, path, size, box))


def decode_image(content: bytes, name: str, size: int, box: Box | None = None) -> Tensor:
    """Decode the content of an image file as `read_image` does; errors use `name` as its name."""
    with opened_bytes(content, name) as image:
        return to_tensor(read_square(image, name, size, box))


def read_square(
    image: Image.Image, name: Path | str, size: int, box: Box | None = None
) -> Image.Image:
    """Decode an opened image as RGB, crop it as `read_image` does, and resize it."""
    if image.format == "JPEG" and box is None:
        image.draft("RGB", (2 * size, 2 * size))
    return square(load_rgb(image, name), size, box)


def square(image: Image.Image, size: int, box: Box | None = None) -> Image.Image:
    """Crop to a box, or to the largest centered square, and resize to `size` x `size`."""
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
    """Convert an RGB image to uint8 (3, H, W)."""
    import torch  # the functions that return no tensors work without it

    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image file, and check its format and the size in its header."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise BadImageError(path, "unreadable", _reason(error)) from None
    with file, _checked(file, path, os.fstat(file.fileno()).st_size) as image:
        yield image


@contextmanager
def opened_bytes(content: bytes, name: str) -> Iterator[Image.Image]:
    """Open the content of an image file as `opened` does; errors use `name` as its name."""
    with _checked(io.BytesIO(content), name, len(content)) as image:
        yield image


def hash_file(path: Path) -> str:
    """Return the SHA-256 of an image file, or "" if it cannot be read or is too large."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                return ""
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


@contextmanager
def _checked(file: IO[bytes], name: Path | str, num_bytes: int) -> Iterator[Image.Image]:
    if num_bytes == 0:
        raise BadImageError(name, "zero_byte", "the file is empty")
    if num_bytes > MAX_FILE_BYTES:
        detail = f"{num_bytes:,} bytes are more than the {MAX_FILE_BYTES:,} that are read"
        raise BadImageError(name, "too_large", detail)
    try:
        image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError:
        raise BadImageError(name, "too_large", f"more than {MAX_PIXELS} pixels") from None
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise BadImageError(
            name, "unreadable", f"not an image in a known format: {known}"
        ) from None
    except (OSError, SyntaxError, ValueError) as error:
        if "decoder object" in str(error) and _is_cut_webp(file, num_bytes):
            raise BadImageError(name, "truncated", "the file is cut short") from None
        raise BadImageError(name, _fault(error), _reason(error)) from None
    with image:
        _check_size(image, name)
        yield image


def _check_size(image: Image.Image, name: Path | str) -> None:
    """Raise an error if the header describes too large an image, before it is decoded."""
    pixels, size = image.width * image.height, f"{image.width} x {image.height}"
    if pixels > MAX_PIXELS:
        detail = f"{size} is more than {MAX_PIXELS} pixels"
        raise BadImageError(name, "too_large", detail)
    needed = pixels * _bytes_per_pixel(image)
    if needed > MAX_MEMORY_BYTES:
        detail = (
            f"decoding {size} pixels of {image.format} ({image.mode}) takes {needed >> 20} MiB, "
            f"more than {MAX_MEMORY_BYTES >> 20}"
        )
        raise BadImageError(name, "too_large", detail)


def _bytes_per_pixel(image: Image.Image) -> int:
    """Return the peak memory per pixel of decoding an image to RGB, in bytes."""
    decoded = _PIXEL_BYTES.get(image.mode, 4)
    is_plain = image.mode == "RGB" and "transparency" not in image.info
    rgb = 0 if is_plain else 4
    narrow = 1 if image.mode in _WIDE_MODES else 0
    decoder = _WEBP_PIXEL_BYTES if image.format == "WEBP" else 0
    return decoded + max(decoder, rgb + narrow, decoded if _needs_rotation(image) else 0)


def _needs_rotation(image: Image.Image) -> bool:
    """True if the EXIF orientation, as far as it has been read, is not upright."""
    if image.format == "PNG" and "exif" not in image.info:
        return False  # EXIF data may follow the pixels; to find it, Pillow would decode the image
    try:
        return bool(image.getexif().get(_ORIENTATION, 1) != 1)
    except Exception:  # a broken header can raise any error; decoding reports the fault
        return True


def load_rgb(image: Image.Image, name: Path | str) -> Image.Image:
    """Decode the first frame of an opened image as RGB, upright by its EXIF orientation."""
    try:
        image.load()
        _check_size(image, name)  # again: a PNG can have EXIF data after its pixels
        ImageOps.exif_transpose(image, in_place=True)
        return to_rgb(image)
    except BadImageError:
        raise
    except Image.DecompressionBombError:
        raise BadImageError(name, "too_large", f"more than {MAX_PIXELS} pixels") from None
    except FloatingPointError as error:
        raise BadImageError(name, "not_finite", str(error)) from None
    except Exception as error:  # decoders raise many types, such as struct and zlib errors
        raise BadImageError(name, _fault(error), _reason(error)) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit RGB."""
    if image.mode in _WIDE_MODES:
        return _narrow(image).convert("RGB")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Compose an image with transparent pixels on white, some rows at a time."""
    result = Image.new("RGB", image.size)
    for top, strip in _strips(image):
        layer = strip.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        result.paste(Image.alpha_composite(ground, layer).convert("RGB"), (0, top))
    return result


def _narrow(image: Image.Image) -> Image.Image:
    """Reduce gray values to 8 bits; floats are scaled by 255 if none is above 1."""
    narrow = Image.new("L", image.size)
    scale = _scale(image) if image.mode == "F" else 1 / 257
    for top, strip in _strips(image):
        values = np.asarray(strip)
        levels = np.clip(values.astype(np.float64) * scale, 0, 255).round().astype(np.uint8)
        narrow.paste(Image.fromarray(levels), (0, top))
    return narrow


def _scale(image: Image.Image) -> float:
    """Return the factor that scales floats to 0..255."""
    highest = 0.0
    for _, strip in _strips(image):
        values = np.asarray(strip)
        if not np.isfinite(values).all():
            raise FloatingPointError("pixels that are NaN or infinite")
        highest = max(highest, float(values.max()))
    return 255.0 if highest <= 1 else 1.0


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield strips of an image, each with its top row."""
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        yield top, image.crop((0, top, width, min(top + rows, height)))


def _is_cut_webp(file: IO[bytes], num_bytes: int) -> bool:
    """True if a WebP file is shorter than its header says."""
    file.seek(4)
    return num_bytes < 8 + int.from_bytes(file.read(4), "little")


def _fault(error: Exception) -> Fault:
    return "truncated" if "truncated" in str(error).lower() else "unreadable"


def _reason(error: Exception) -> str:
    """Return the message of an error as one line."""
    strerror = getattr(error, "strerror", None)
    return " ".join(str(strerror or error).split()) or type(error).__name__
