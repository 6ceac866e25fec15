"""The errors a user can cause, each with the exit code the command line gives it.

Every error is also a built-in exception (`ValueError`, `RuntimeError`), so that library users can
catch what they would expect, and the command line prints the message alone, without a traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

__all__ = [
    "ConfigError",
    "DataError",
    "FullDiskError",
    "Preempted",
    "SaccadeError",
    "Stopped",
    "TrainingError",
    "UnknownNameError",
    "is_full_disk",
    "near_matches",
    "reading_error",
    "writing_error",
]

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where there is no room for a file, or for what goes to stdout."""

LEAST_LIKENESS = 0.45  # of a name that is suggested
BEHIND = 0.1  # by less than this is a suggestion less like than the best


class SaccadeError(Exception):
    """Base of every error that saccade raises on purpose."""

    exit_code = 1


class ConfigError(SaccadeError, ValueError):
    """An argument, option or configuration value that cannot be accepted."""

    exit_code = 2


class DataError(SaccadeError, ValueError):
    """A data set or file that is missing, broken or unfit."""

    exit_code = 3


class TrainingError(SaccadeError, RuntimeError):
    """A run that cannot go on: a non-finite loss, or no memory left."""

    exit_code = 4


class FullDiskError(TrainingError):
    """No room is left on the disk for what has to be written."""


class Preempted(SaccadeError, RuntimeError):  # noqa: N818 - it names an event, not a fault
    """A run that was told to stop, saved its state and can be resumed."""

    exit_code = 75


class Stopped(SaccadeError, RuntimeError):  # noqa: N818 - it names an event, not a fault
    """A run that whoever watches it ended early and for good, such as a pruned trial."""

    exit_code = 4


class UnknownNameError(ConfigError):
    """A name that is not in a table; the message lists the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = near_matches(str(name), known)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}Known: {', '.join(known) or 'none'}.")
        self.kind, self.name, self.near = kind, name, near


def is_full_disk(error: OSError) -> bool:
    """Whether an error of the system says that the disk is full."""
    return error.errno in FULL_DISK


def reading_error(path: Path, error: OSError) -> ConfigError:
    """What to raise where a file or folder that somebody named cannot be read."""
    return ConfigError(f"{error.filename or str(path)!r} cannot be read: {error.strerror}")


def writing_error(
    told: str, error: OSError, kind: type[SaccadeError], advice: str = ""
) -> SaccadeError:
    """What to raise where something cannot be written.

    Args:
        told: The message up to the reason.
        error: The system's.
        kind: The error to make of it, unless the disk is full.
        advice: What to say after the reason.
    """
    raised = FullDiskError if is_full_disk(error) else kind
    return raised(f"{told}: {error.strerror or error}" + (f"; {advice}" if advice else ""))


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """The up to three known names closest to `name`, best first.

    Those far behind the best are left out. A section that names share, as in `train.epochs`, makes
    no likeness.
    """
    known = list(known)
    near = get_close_matches(name, known, n=len(known) or 1, cutoff=0.6)
    likeness = {other: _likeness(name, other) for other in near}
    least = max(LEAST_LIKENESS, max(likeness.values(), default=0.0) - BEHIND)
    near = [other for other in near if likeness[other] >= least]
    return sorted(near, key=likeness.__getitem__, reverse=True)[:3]


def _likeness(name: str, other: str) -> float:
    own, others = (word.rpartition(".")[2] for word in (name, other))
    return SequenceMatcher(None, others, own).ratio()
