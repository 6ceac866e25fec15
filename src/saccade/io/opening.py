"""Open regular files only."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

__all__ = ["check_regular", "open_file", "open_regular"]


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. FIFOs and devices raise an error without blocking.

    Args:
        path: The file.
        follow: Follow a symbolic link.

    Raises:
        IsADirectoryError: The path is a folder.
        OSError: The path is not a regular file or cannot be opened.
    """
    flags = os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)
    return cast(BufferedReader, open_file(path, flags, "rb"))


def open_file(path: Path, flags: int, mode: str) -> IO[bytes]:
    """Open a regular file with flags of `os.open`; otherwise as `open_regular`."""
    return open(path, mode, opener=lambda _, __: _open_descriptor(path, flags))


def _open_descriptor(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a FIFO opened for writing
            raise OSError(errno.EINVAL, "is not a regular file", str(path)) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    name = "a FIFO" if stat.S_ISFIFO(kind) else "a device"
    raise OSError(errno.EINVAL, f"is {name}, not a regular file", str(path))


def check_regular(path: Path) -> None:
    """Check that a path is a regular file, before a library opens it.

    Raises:
        OSError: As `open_regular` does.
    """
    open_regular(path).close()
