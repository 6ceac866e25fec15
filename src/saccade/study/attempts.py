"""Records of attempts: when a worker began a run, and how the attempt ended. They limit retries.

    attempts/<name>.<number>.json   start time, process, first step, outcome and reason

If a file has no outcome, the attempt is in progress, or its worker died before it could record one.
The worker that holds the claim on the run begins the attempt. The outcome is recorded by the same
worker, by the process that started that worker and saw it die, or by the worker that takes over.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from saccade.errors import (
    Preempted,
    RunLockedError,
    SaccadeError,
    TakenOver,
    TrainingError,
    is_transient,
    writing_error,
)
from saccade.io import read_json_object, write_json

__all__ = ["MAX_ATTEMPTS", "WORKER_ID", "Attempt", "Attempts", "one_line", "reason_of"]

MAX_ATTEMPTS = 3
"""Consecutive attempts that may fail at the same step for external reasons before giving up."""

WORKER_ID = "SACCADE_WORKER_ID"
"""Environment variable that holds a worker's globally unique id."""

UNSEEN = "its worker died"
"""Reason recorded when no process saw how the worker died."""

_own_id = uuid4().hex

End = Literal["under way", "finished", "failed", "stopped", "died", "io error"]


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run.

    Attributes:
        path: File of this record.
        step: Step of the newest checkpoint when the attempt began.
        started: Start time in seconds since the epoch.
        host: Host name of the machine.
        pid: Process id.
        worker: Worker id, unique over all machines.
        end: Outcome, or `under way`.
        reason: Reason for the outcome, in one line.
    """

    path: Path
    step: int
    started: float
    host: str
    pid: int
    worker: str
    end: End = "under way"
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name.rsplit(".", 2)[0]

    @property
    def number(self) -> int:
        """Number of the attempt, starting at 1."""
        return int(self.path.name.split(".")[-2])


class Attempts:
    """The attempts of a study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, name: str) -> list[Attempt]:
        """Attempts of a run in order. Unreadable files are ignored."""
        found = [_read(path) for path in self.folder.glob(f"{name}.*.json")]
        return sorted((a for a in found if a is not None), key=lambda attempt: attempt.number)

    def begin(self, name: str, step: int) -> Attempt:
        """Record the start of an attempt. The caller must hold the claim on the run.

        Raises:
            TrainingError: The record cannot be written, so the attempt must not begin.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            number = max((old.number for old in self.of(name)), default=0) + 1
            path = self.folder / f"{name}.{number}.json"
            worker = os.environ.get(WORKER_ID, _own_id)
            attempt = Attempt(path, step, time.time(), platform.node(), os.getpid(), worker)
            _write(attempt)
        except OSError as error:
            message = f"cannot write to {str(self.folder)!r}"
            raise writing_error(message, error, TrainingError, "go on with --resume") from None
        return attempt

    @contextmanager
    def ending(self, attempt: Attempt) -> Iterator[None]:
        """Record the outcome of the attempt that the `with` block makes.

        If the outcome cannot be written, the attempt later counts as one whose worker died.
        """
        try:
            yield
        except (RunLockedError, TakenOver):
            with suppress(OSError):
                attempt.path.unlink(missing_ok=True)  # another process has the run: not counted
            raise
        except BaseException as error:
            with suppress(OSError):
                _write(replace(attempt, end=_end_of(error), reason=one_line(error)))
            raise
        with suppress(OSError):
            _write(replace(attempt, end="finished"))

    def failures(self, name: str, step: int, *, since: float = 0.0) -> list[Attempt]:
        """Consecutive attempts from `step` that failed for external reasons, oldest first.

        They include attempts that failed on their own if that could not be recorded in the run, for
        example because memory ran out; a run with such a record is not tried again.

        Attempts that were asked to stop are skipped. Counting stops at an attempt that began at
        another step or before `since`. The caller must hold the claim on the run. An attempt
        without an outcome is therefore one whose worker died, and is recorded as such.
        """
        found: list[Attempt] = []
        for attempt in reversed(self.of(name)):
            if attempt.end == "under way":
                attempt = replace(attempt, end="died", reason=UNSEEN)
                with suppress(OSError):
                    _write(attempt)
            if attempt.step != step or attempt.started < since:
                break
            if attempt.end in ("died", "io error", "failed"):
                found.append(attempt)
        return found[::-1]

    def made_by(self, worker: str) -> list[Attempt]:
        """Attempts of the workers whose id begins with `worker`, in order of their start."""
        found = (_read(path) for path in self.folder.glob("*.json"))
        own = (a for a in found if a is not None and a.worker.startswith(worker))
        return sorted(own, key=lambda attempt: attempt.started)

    def note_death(self, worker: str, reason: str) -> str | None:
        """Record why a worker died. Return the name of the run it worked on, if any."""
        own = self.made_by(worker)
        attempt = next(
            (a for a in reversed(own) if a.end == "under way" or a.reason == UNSEEN), None
        )
        if attempt is None:
            return None
        with suppress(OSError):
            _write(replace(attempt, end="died", reason=reason))
        return attempt.name


def reason_of(failures: Sequence[Attempt]) -> str:
    """The most recent known reason for failed attempts."""
    seen = (attempt.reason for attempt in reversed(failures) if attempt.reason != UNSEEN)
    return next(seen, UNSEEN)


def one_line(error: BaseException) -> str:
    """Format an error as one line."""
    message = " ".join(str(error).split())
    return message if isinstance(error, SaccadeError) else f"{type(error).__name__}: {message}"


def _end_of(error: BaseException) -> End:
    if isinstance(error, Preempted | KeyboardInterrupt):
        return "stopped"
    if is_transient(error):
        return "io error"
    return "failed"


def _read(path: Path) -> Attempt | None:
    try:
        values = read_json_object(path)
        return Attempt(path=path, **values)
    except (SaccadeError, TypeError):
        return None


def _write(attempt: Attempt) -> None:
    values: dict[str, Any] = {k: v for k, v in asdict(attempt).items() if k != "path"}
    write_json(attempt.path, values)
