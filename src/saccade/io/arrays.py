"""Read NumPy archives (`.npz`); claimed array sizes are checked before memory is allocated."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.errors import ConfigError
from saccade.io.reading import read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_BYTES", "parse_arrays", "read_arrays"]

MAX_BYTES = 4 << 30
MAX_ARRAYS = 64


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an uncompressed `.npz` file, as `numpy.savez` writes it.

    Raises:
        ConfigError: The file cannot be read or is not such an archive.
    """
    return parse_arrays(read_bytes(path, limit=MAX_BYTES), path)


def parse_arrays(content: bytes, path: Path) -> dict[str, NDArray[Any]]:
    """Parse the content of an `.npz` file, as `read_arrays` does."""
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, zipfile.BadZipFile, EOFError, NotImplementedError, KeyError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{str(path)!r} cannot be read: {message}") from None
    except (OSError, TypeError, SyntaxError, RuntimeError, OverflowError, MemoryError) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"{str(path)!r} cannot be read: {message}") from None


def _check_members(archive: zipfile.ZipFile) -> None:
    """Raise `ValueError` if an array's header claims more bytes than the file holds for it."""
    from numpy.lib import format as npy

    members = archive.infolist()
    if len(members) > MAX_ARRAYS:
        raise ValueError(f"it has {len(members)} arrays, more than {MAX_ARRAYS}")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed")
        with archive.open(member) as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"{member.filename} holds {dtype}, which is no kind of number")
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} is not a complete array of numbers")
