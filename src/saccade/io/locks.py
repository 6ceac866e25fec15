"""Lock files. The kernel releases a lock when the process that holds it ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from saccade.io.opening import open_file, open_regular

__all__ = ["is_locked", "locked", "open_lock", "try_lock"]

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


def open_lock(path: Path, *, create: bool = True) -> IO[bytes]:
    """Open a lock file without following symbolic links.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    return open_file(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), "r+b")


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
