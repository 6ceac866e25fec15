"""Image files to test with, good and bad."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """A smooth random picture, different for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def good_folder(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 6, first: int = 0
) -> Path:
    """Write `count` distinct pictures per class; another `first` gives different pictures."""
    for number, name in enumerate(classes):
        for i in range(count):
            suffix = ("png", "jpg", "webp")[i % 3]
            save(picture(first + 100 * number + i), root / name / f"{i}.{suffix}")
    return root


def truncate(path: Path, share: float = 0.6) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path


def bomb(path: Path, width: int = 60_000, height: int = 60_000) -> Path:
    """Write a small PNG file whose header declares billions of pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b""))
    return path


def close_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make listing a folder fail with a permission error, which root would never get."""

    def refusing(listing: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            if Path(path) == folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return listing(path)

        return call

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


def digits_folder(root: Path, first: int = 0, last: int = 12, classes: int = 10) -> Path:
    """Write digits `first` to `last` of each class of scikit-learn's digits as PNG files."""
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    levels = (pixels.reshape(-1, 8, 8) * 255 / 16).round().astype(np.uint8)
    for label in range(classes):
        for number, row in enumerate(np.flatnonzero(targets == label)[first:last], start=first):
            save(Image.fromarray(levels[row]), root / f"digit-{label}" / f"{number:03d}.png")
    return root
