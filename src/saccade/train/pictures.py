"""Pictures a user names, as the pixels a trained model expects."""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.data.folder import scan
from saccade.data.images import IMAGE_SUFFIXES, BadImageError, read_image
from saccade.errors import ConfigError, DataError

__all__ = ["find_pictures", "normalise", "open_picture"]

LUMA = (0.299, 0.587, 0.114)


def find_pictures(names: Iterable[str]) -> list[str]:
    """The files that the names stand for: folders are searched, `-` is kept, URLs are refused."""
    found: list[str] = []
    for name in names:
        if not name:
            raise ConfigError("IMAGE '': wants a file, a folder, or - for stdin")
        if "://" in name:
            raise ConfigError(f"IMAGE {name!r}: URLs are not fetched; download the file first")
        if name == "-":
            found.append(name)
            continue
        try:
            mode = Path(name).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"IMAGE {name!r}: no such file or folder") from None
        except OSError as error:
            raise DataError(f"IMAGE {name!r}: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            found += _pictures_in(Path(name))
        elif stat.S_ISREG(mode):
            found.append(name)
        else:
            raise DataError(f"IMAGE {name!r}: neither a regular file nor a folder")
    return found


def _pictures_in(folder: Path) -> list[str]:
    inside = [str(file) for file in scan(folder) if file.suffix.lower() in IMAGE_SUFFIXES]
    if not inside:
        raise DataError(f"IMAGE {str(folder)!r}: the folder has no images")
    return inside


def open_picture(name: str, info: DatasetInfo) -> Tensor:
    """One picture as the normalised float (C, H, W) that a model of this data set takes.

    Args:
        name: A file, or `-` for the bytes on stdin.
        info: Of the data set that the model was trained on.
    """
    size = max(info.image_size)
    pixels = _read_stdin(size) if name == "-" else read_image(Path(name), size)
    return normalise(pixels, info)


def normalise(pixels: Tensor, info: DatasetInfo) -> Tensor:
    """uint8 pixels (C, H, W) as a model of this data set takes them; colours to grey for one."""
    values = pixels.float() / 255
    if info.channels == 1 and len(values) == 3:
        values = (values * torch.tensor(LUMA)[:, None, None]).sum(0, keepdim=True)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (info.mean, info.std))
    return (values - mean) / std


def _read_stdin(size: int) -> Tensor:
    with tempfile.NamedTemporaryFile() as file:
        file.write(sys.stdin.buffer.read())
        file.flush()
        try:
            return read_image(Path(file.name), size)
        except BadImageError as error:
            raise DataError(f"bad image on stdin: {error.detail}") from None
