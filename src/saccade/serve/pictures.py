"""Pictures that clients send: checked before they are decoded, and kept in memory only."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO

import torch
from PIL import Image
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.data.images import BadImageError, opened_bytes
from saccade.serve.guard import Settings
from saccade.train.image_inputs import decode_pixels, normalize

__all__ = [
    "ACCEPTED",
    "Picture",
    "PictureError",
    "PictureStore",
    "as_png",
    "model_input",
    "model_pixels",
]

ACCEPTED = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats that are decoded; the content decides, not the name or the declared type."""

ID_CHARS = 16


class PictureError(ValueError):
    """A picture that is refused."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Picture:
    """The bytes of a checked picture.

    Attributes:
        id: Start of the SHA-256 of the content.
    """

    id: str
    content: bytes
    width: int
    height: int
    format: str


def check(content: bytes, settings: Settings) -> Picture:
    """Check size and format of a picture from its header, without decoding it.

    Raises:
        PictureError: The picture is empty, too large, or not in an accepted format.
    """
    if not content:
        raise PictureError("the picture is empty: send the bytes of an image file", 422)
    if len(content) > settings.max_bytes:
        raise PictureError(too_many_bytes(settings), 413)
    known = ", ".join(ACCEPTED)
    try:
        with opened_bytes(content, "the picture") as image:
            width, height, name = image.width, image.height, image.format or ""
    except BadImageError as error:
        status = 413 if error.fault == "too_large" else 415
        raise PictureError(f"the picture cannot be read: {error.detail}", status) from None
    if name not in ACCEPTED:
        raise PictureError(f"the picture must be in one of {known}, got {name}", 415)
    if width * height > settings.max_pixels:
        raise PictureError(
            f"the picture must have at most {settings.max_pixels:,} pixels, got "
            f"{width:,} x {height:,}; make it smaller",
            413,
        )
    digest = hashlib.sha256(content).hexdigest()[:ID_CHARS]
    return Picture(digest, content, width, height, name)


def too_many_bytes(settings: Settings) -> str:
    """The message for a request body that is too large."""
    return f"the picture must have at most {settings.max_bytes:,} bytes; make it smaller"


def model_pixels(picture: Picture, info: DatasetInfo) -> Tensor:
    """Decode a picture to the uint8 pixels (3, H, W) that a model takes once normalized.

    Raises:
        PictureError: The pixels cannot be decoded.
    """
    try:
        return decode_pixels(picture.content, "the picture", info)
    except BadImageError as error:
        raise PictureError(f"the picture cannot be read: {error.detail}", 422) from None


def model_input(picture: Picture, info: DatasetInfo) -> Tensor:
    """Decode a picture to the normalized tensor (C, H, W) that a model takes."""
    return normalize(model_pixels(picture, info), info)


def as_png(pixels: Tensor) -> bytes:
    """Encode uint8 pixels (1 or 3, H, W) as PNG."""
    values = pixels.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
    file = BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


class PictureStore:
    """The latest pictures, so that a slider need not send its picture again.

    Samples are kept for as long as the server runs; of other pictures the oldest are dropped.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._samples: dict[str, Picture] = {}
        self._latest: OrderedDict[str, Picture] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def add_sample(self, content: bytes) -> Picture:
        """Check and keep a sample."""
        picture = check(content, self._settings)
        self._samples[picture.id] = picture
        return picture

    def add(self, content: bytes) -> Picture:
        """Check and keep a picture; drop the oldest ones if there are too many."""
        picture = check(content, self._settings)
        with self._lock:
            if picture.id in self._samples:
                return picture
            if picture.id not in self._latest:
                self._bytes += len(content)
            self._latest[picture.id] = picture
            self._latest.move_to_end(picture.id)
            while self._bytes > self._settings.kept_bytes and len(self._latest) > 1:
                _, dropped = self._latest.popitem(last=False)
                self._bytes -= len(dropped.content)
        return picture

    def get(self, name: str) -> Picture:
        """A kept picture.

        Raises:
            PictureError: It is not kept (any more).
        """
        with self._lock:
            picture = self._samples.get(name) or self._latest.get(name)
            if name in self._latest:
                self._latest.move_to_end(name)
        if picture is None:
            raise PictureError(
                "this picture is not kept: pictures stay in memory only, and only the latest; "
                "send it again",
                404,
            )
        return picture
