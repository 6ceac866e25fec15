"""Claims: mutual exclusion between workers on several machines that share a folder.

A claim on `name` is the file `name.<generation>`. Only the highest generation counts. The owner
holds a lock on the file and updates its modification time every few seconds. A claim becomes free
when the owner releases it or dies. On the same machine, a dead owner's lock is released by the
kernel. On another machine, an owner counts as dead if the file was not touched for `GRACE_S`,
measured by the clock of the file server. A worker takes a free claim by hard-linking the next
generation into place, which succeeds for exactly one worker. An owner that only seemed dead, for
example because it was suspended, finds a higher generation and must stop working on `name`.

Some file systems have no hard links. There the next generation is created under its final name and
is empty until its owner has written it. An empty file therefore means "released" only on file
systems with hard links. On the others, the content `FREE` means "released".
"""

from __future__ import annotations

import errno
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from saccade.errors import ConfigError, writing_error
from saccade.io import is_locked, open_lock, read_bytes, try_lock

__all__ = ["Claim", "Claims", "link_new"]

BEAT_S = 10.0
GRACE_S = 120.0
POLL_S = 0.05

LIMIT = 10_000  # bytes of a claim's file
FREE = b"free"
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}

_owned: dict[Path, IO[bytes]] = {}
"""Claims of this process, with the open files that hold their locks.

Do not open these files again: closing a second descriptor would release a POSIX lock.
"""

_beats: list[threading.Thread] = []
"""The heartbeat thread. It starts with the first `Claims`, because starting a thread can block
forever once memory is low.
"""


def link_new(path: Path, aside: Path) -> bool | None:
    """Hard-link `aside` to `path`, which must not exist yet.

    Returns:
        True on success, False if `path` exists, None if the file system has no hard links.
    """
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return None
    return True


@dataclass(frozen=True)
class Claim:
    """A claim that this process owns.

    Attributes:
        path: The claim's file.
    """

    path: Path
    _file: IO[bytes]
    _has_links: bool

    @property
    def is_ours(self) -> bool:
        """True if no other worker has taken the claim over."""
        return _newest(self.path.parent, self.path.stem) == self.path

    def give_back(self) -> None:
        """Release the claim."""
        descriptor = self._file.fileno()
        try:
            if self._has_links:
                os.ftruncate(descriptor, 0)
            else:
                os.pwrite(descriptor, FREE.ljust(os.fstat(descriptor).st_size), 0)
        finally:
            _owned.pop(self.path, None)
            self._file.close()


class Claims:
    """The claims in a folder.

    Args:
        folder: Folder of the claim files; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not any(thread.is_alive() for thread in _beats):
            _beats[:] = [threading.Thread(target=_beat, name="claims", daemon=True)]
            _beats[0].start()

    def take(self, name: str) -> Claim | None:
        """Claim `name`. Return None if another worker has it.

        Args:
            name: Name of the claim, without a dot.

        Raises:
            ConfigError: The folder cannot be written to, or its file system has no locks.
            FullDiskError: The disk is full.
        """
        try:
            return self._take(name)
        except OSError as error:
            message = f"cannot take a claim in {str(self.folder)!r}"
            raise writing_error(message, error, ConfigError) from None

    def _take(self, name: str) -> Claim | None:
        before = _newest(self.folder, name)
        if before is not None and self._is_taken(before):
            return None
        generation = int(before.suffix[1:]) + 1 if before is not None else 1
        claim = self._make(self.folder / f"{name}.{generation}")
        if claim is None:
            return None
        if not claim.is_ours:
            claim.give_back()
            return None
        if before is not None:
            with suppress(OSError):  # the next owner deletes it
                before.unlink(missing_ok=True)
        return claim

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the claim on `name` and hold it during the `with` block."""
        while (claim := self.take(name)) is None:
            time.sleep(POLL_S)
        try:
            yield
        finally:
            claim.give_back()

    def _make(self, path: Path) -> Claim | None:
        """Create a complete, locked claim file. Return None if another worker was first."""
        owner = json.dumps({"kernel": _kernel(), "pid": os.getpid()}).encode()
        aside = self.folder / f"new-{uuid.uuid4().hex}"
        file = open_lock(aside)
        has_links: bool | None = None
        try:
            try_lock(file)
            os.write(file.fileno(), owner)
            has_links = link_new(path, aside)
        finally:
            with suppress(OSError):
                aside.unlink()
            if not has_links:
                file.close()
        if has_links is None:
            return self._create(path, owner)
        if not has_links:
            return None
        _owned[path] = file
        return Claim(path, file, True)

    def _create(self, path: Path, owner: bytes) -> Claim | None:
        """Create a claim file as `_make` does, on a file system without hard links."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        except FileExistsError:
            return None
        file = open_lock(path)
        try_lock(file)
        os.write(file.fileno(), owner)
        _owned[path] = file
        return Claim(path, file, False)

    def _is_taken(self, path: Path) -> bool:
        """True if the claim is not released and its owner is alive."""
        if path in _owned:
            return True
        try:
            content = _read(path)
            if content.startswith(FREE) or (not content and self._has_links()):
                return False
            owner = _parse(path, content)
            if owner.get("kernel") == _kernel():
                return is_locked(path)
            return self._now() - path.stat().st_mtime < GRACE_S
        except FileNotFoundError:
            return True  # deleted by a worker that has just taken over

    def _has_links(self) -> bool:
        """True if the file system has hard links."""
        probe = self.folder / f"new-{uuid.uuid4().hex}"
        second = probe.with_name(f"{probe.name}-link")
        probe.touch()
        try:
            return link_new(second, probe) is not None
        finally:
            for path in (probe, second):
                with suppress(OSError):
                    path.unlink()

    def _now(self) -> float:
        """Current time by the clock of the file server."""
        probe = self.folder / f"new-{uuid.uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            with suppress(OSError):
                probe.unlink()


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        for path in [*_owned]:
            with suppress(OSError):  # deleted by a worker that took over
                os.utime(path)


def _newest(folder: Path, name: str) -> Path | None:
    """Claim file with the highest generation, if any."""
    paths = (path for path in folder.glob(f"{name}.*") if path.suffix[1:].isdecimal())
    return max(paths, key=lambda path: int(path.suffix[1:]), default=None)


def _read(path: Path) -> bytes:
    """Read a claim file.

    Raises:
        FileNotFoundError: The file does not exist.
        ConfigError: The file cannot be read.
    """
    try:
        return read_bytes(path, limit=LIMIT)
    except ConfigError:
        path.stat()
        raise


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """Owner of a claim; an empty dict if the file is empty."""
    try:
        owner = json.loads(content) if content else {}
        return dict(owner)
    except (ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"{str(path)!r} is damaged; delete it when no worker is running on this study"
        ) from None


def _kernel() -> str:
    """Id of the running kernel. Locks are visible to all processes of one kernel."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()
