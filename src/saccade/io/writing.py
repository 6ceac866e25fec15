"""Write files atomically and durably, and lock files.

A file is written under a temporary name in its folder, synced and renamed; then the folder is
synced. A file under its final name is therefore complete, even after a kill or a power failure. The
temporary name is `.NAME.` followed by 32 hexadecimal digits. The writer holds a lock on it, so
`remove_leftovers` deletes only the files of dead processes. The kernel releases a lock when the
process that holds it ends.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO
from uuid import uuid4

from saccade.io.reading import open_file, open_regular

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


_held: set[IO[Any]] = set()
"""Lock files that this process holds."""


def _close_inherited() -> None:
    """Close inherited lock files in a forked child, so that the lock ends with the parent."""
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock file during a block; create the file if it is missing.

    Args:
        path: The lock file. Its content is not changed; a symbolic link is an error.
        on_wait: Called before waiting for another process that holds the lock.

    Raises:
        BlockingIOError: Another process holds the lock and `on_wait` is None.
        OSError: The lock file cannot be created, or its file system has no locks.
    """
    with open_lock(path) as file:
        if not try_lock(file):
            if on_wait is None:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process holds it", str(path))
            on_wait()
            _flock(file, fcntl.LOCK_EX)
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)


def open_lock(path: Path) -> IO[bytes]:
    """Open or create a lock file without following symbolic links.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    return open_file(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, "r+b")


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        _flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """True if a process holds a lock on a file.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    with open_regular(path, follow=False) as file:
        return not try_lock(file, shared=True)


def _flock(file: IO[Any], how: int) -> None:
    """Lock with `flock`, or with POSIX locks if the file system supports only those."""
    unsupported = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in unsupported:
            raise
        try:
            fcntl.lockf(file, how)
        except OSError as second:
            if second.errno in {errno.EACCES, errno.EAGAIN}:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EAGAIN)) from None
            if second.errno not in unsupported:
                raise
            message = "its file system has no file locks: use a folder on another disk"
            raise OSError(error.errno, message, str(file.name)) from None
