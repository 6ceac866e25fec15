"""Write files atomically and durably.

A file is written under a temporary name in its folder, synced and renamed; then the folder is
synced. A file under its final name is therefore complete, even after a kill or a power failure. The
temporary name is `.NAME.` followed by 32 hexadecimal digits. The writer holds a lock on it, so
`remove_leftovers` deletes only the files of dead processes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from saccade.io.locks import is_locked, try_lock
from saccade.io.opening import open_file

__all__ = [
    "append_text",
    "check_writable",
    "make_folder",
    "remove_leftovers",
    "sync",
    "write_file",
    "write_json",
    "write_new",
]

Content = str | bytes | Callable[[BinaryIO], object]


def write_file(path: Path, content: Content) -> None:
    """Create or replace a file atomically and durably.

    Args:
        path: The file; its folder must exist.
        content: Text (written as UTF-8), bytes, or a function that writes to the open file.

    Raises:
        OSError: The file cannot be written. The error names `path`. The old file is unchanged and
            the temporary file is deleted.
    """
    _write_aside(path, content, lambda temporary: temporary.replace(path))


def write_new(path: Path, content: Content) -> bool:
    """Create a file as `write_file` does, but never replace one.

    If several processes try at once, exactly one succeeds.

    Returns:
        False if the file exists already.
    """
    try:
        _write_aside(path, content, lambda temporary: _link(temporary, path))
    except FileExistsError:
        return False
    return True


def _write_aside(path: Path, content: Content, publish: Callable[[Path], object]) -> None:
    for attempt in range(3):
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                with suppress(OSError):  # the file system has no locks
                    try_lock(file)
                _write(file, content)
                file.flush()
                os.fsync(file.fileno())
                publish(temporary)
            sync(path.parent)
        except OSError as error:
            was_removed = isinstance(error, FileNotFoundError) and path.parent.is_dir()
            if was_removed and attempt < 2:  # `remove_leftovers` ran before the file was locked
                continue
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return


def _link(temporary: Path, path: Path) -> None:
    """Hard-link a file to an unused name, or copy it if the file system has no hard links."""
    try:
        path.hardlink_to(temporary)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        with path.open("xb") as file:
            file.write(temporary.read_bytes())
            file.flush()
            os.fsync(file.fileno())


def write_json(path: Path, values: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file as `write_file` does; NaN and infinity raise `ValueError`."""
    write_file(path, json.dumps(values, indent=indent, allow_nan=False) + "\n")


def append_text(path: Path, text: str) -> None:
    """Append text to a file; create the file if it is missing. Does not sync.

    Raises:
        OSError: The file cannot be written. The error names `path`.
    """
    try:
        with open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, "ab") as file:
            file.write(text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write(file: BinaryIO, content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk.

    Folders are skipped on file systems that cannot sync them.

    Raises:
        OSError: The file or folder cannot be synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if not (is_folder and error.errno in {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and sync them to disk.

    Raises:
        OSError: The folder cannot be created, or the path is not a folder.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *missing):
        sync(folder.parent)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete temporary files that killed processes left behind.

    Files that a running process writes are locked and are kept.

    Args:
        folder: The folder to search; ignored if it cannot be read.
        name: Delete only temporary files of this file; default: of every file.
    """
    pattern = re.compile(rf"\.{re.escape(name) if name else '.+'}\.[0-9a-f]{{32}}")
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if pattern.fullmatch(path.name):
                with suppress(OSError):
                    if not is_locked(path):
                        path.unlink()


def check_writable(path: Path, content: str) -> None:
    """Check that a file with this content could be written to a folder, without changing it.

    The folder need not exist. Writes the content to an unnamed temporary file (`O_TMPFILE`). On
    file systems without such files, only the permissions are checked.

    Raises:
        OSError: The folder cannot be created or written to, or its disk is full.
    """
    folder = next(place for place in (path, *path.parents) if place.exists())
    try:
        unnamed = os.open(folder, getattr(os, "O_TMPFILE", os.O_DIRECTORY) | os.O_WRONLY)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
        return
    with os.fdopen(unnamed, "wb") as file:
        file.write(content.encode())
