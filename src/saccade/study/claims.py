"""Claims: which worker has a piece of work, among workers on many machines that share a folder.

A claim on `name` is the file `name.<generation>`, and the highest generation counts. Its owner
holds a lock on the file and touches it every few seconds. A claim is free again when it was given
back (the file is empty) or its owner is dead: on the same machine the kernel has let go of the
lock, on another the file was not touched for `GRACE_S`, by the clock of the file server. Whoever
wants a free claim links the next generation into place, which succeeds for exactly one, however
many try. An owner that was thought dead and wakes up sees a higher generation than its own and
leaves the work alone.
"""

from __future__ import annotations

import fcntl
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
from typing import Any

__all__ = ["Claim", "Claims"]

BEAT_S = 10.0
GRACE_S = 120.0
POLL_S = 0.05


@dataclass(frozen=True)
class Claim:
    """A piece of work that is ours.

    Attributes:
        path: The claim's file.
        deaths: How many owners in a row died before us without making any progress.
    """

    path: Path
    deaths: int
    _descriptor: int
    _given_back: threading.Event

    @property
    def is_ours(self) -> bool:
        """Whether nobody has taken the work over since."""
        return _newest(self.path.parent, self.path.stem) == self.path

    def give_back(self) -> None:
        """Let others have the work."""
        self._given_back.set()
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._given_back.wait(BEAT_S):
            with suppress(FileNotFoundError):  # whoever takes over deletes it
                os.utime(self.path)


class Claims:
    """The claims in a folder.

    Args:
        folder: Where the claims' files are; it is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str, progress: int = 0) -> Claim | None:
        """Claim `name`, or return None where another worker has it.

        Args:
            name: What is claimed; it has no dot.
            progress: How far the work has come; it tells a worker that dies again and again at
                the same place from one that is merely unlucky.
        """
        before = _newest(self.folder, name)
        owner = _read(before)
        if before is not None and owner is not None and self._is_alive(before, owner):
            return None
        deaths = owner["deaths"] + 1 if owner is not None and owner["progress"] == progress else 0
        generation = int(before.suffix[1:]) + 1 if before is not None else 1
        path = self.folder / f"{name}.{generation}"
        ours = {"kernel": _kernel(), "pid": os.getpid(), "progress": progress, "deaths": deaths}
        if (descriptor := self._link(path, ours)) is None:
            return None
        claim = Claim(path, deaths, descriptor, threading.Event())
        if not claim.is_ours:
            claim.give_back()
            return None
        if before is not None:
            before.unlink(missing_ok=True)
        threading.Thread(target=claim._beat, daemon=True).start()
        return claim

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the claim on `name` and have it for the length of a block."""
        while (claim := self.take(name)) is None:
            time.sleep(POLL_S)
        try:
            yield
        finally:
            claim.give_back()

    def _link(self, path: Path, owner: dict[str, Any]) -> int | None:
        """Make a claim's file, locked and whole, or give None where another was first."""
        aside = self.folder / f"new-{uuid.uuid4().hex}"
        descriptor = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, json.dumps(owner).encode())
            path.hardlink_to(aside)
        except FileExistsError:
            os.close(descriptor)
            return None
        finally:
            aside.unlink()
        return descriptor

    def _is_alive(self, path: Path, owner: dict[str, Any]) -> bool:
        try:
            if owner["kernel"] == _kernel():
                return _is_locked(path)
            return self._now() - path.stat().st_mtime < GRACE_S
        except FileNotFoundError:
            return True  # replaced just now: somebody else has it

    def _now(self) -> float:
        """The time by the clock that stamps the claims' files."""
        probe = self.folder / f"new-{uuid.uuid4().hex}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()


def _newest(folder: Path, name: str) -> Path | None:
    """The file of the highest generation of a claim."""
    return max(folder.glob(f"{name}.*"), key=lambda path: int(path.suffix[1:]), default=None)


def _read(path: Path | None) -> dict[str, Any] | None:
    """Who owns a claim; None where it was given back or there is none."""
    try:
        text = path.read_text(encoding="utf-8") if path is not None else ""
    except FileNotFoundError:
        text = ""
    return dict(json.loads(text)) if text else None


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _kernel() -> str:
    """What tells machines apart: locks are seen by all processes of one running kernel."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()
