"""Errors that a user can cause, each with the exit code of the command.

Every error is also a built-in exception (`ValueError` or `RuntimeError`), which library users can
catch. The command line prints only the message, without a traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from saccade.synonyms import has_no_counterpart, synonyms

__all__ = [
    "MAX_VALUE",
    "ConfigError",
    "DamagedRunError",
    "DataError",
    "ExportError",
    "FullDiskError",
    "Preempted",
    "RunLockedError",
    "SaccadeError",
    "Stopped",
    "TakenOver",
    "TrainingError",
    "UnknownNameError",
    "is_full_disk",
    "is_out_of_memory",
    "is_transient",
    "listed",
    "near_matches",
    "reading_error",
    "shorten",
    "writing_error",
]

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of the operating system for no space left, in a file or on stdout."""

TRANSIENT = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EREMOTEIO,
}
"""Error numbers of a disk or file server that failed, where a second try may succeed."""

MIN_SIMILARITY = 0.45  # minimum similarity of a suggestion
MAX_NAME = 200  # longer names get no suggestions, because comparing them is slow
MAX_VALUE = 200  # maximum number of characters of a value in a message
MARGIN = 0.1  # maximum difference in similarity between the best and other suggestions
MAX_LIST_CHARS = 1000  # maximum length of a list of names in a message


class SaccadeError(Exception):
    """Base of every error that saccade raises on purpose.

    Attributes:
        exit_code: Exit code of a command that fails with this error.
        is_transient: True if a disk or file server failed, so that another try may succeed.
    """

    exit_code = 1
    is_transient = False


class ConfigError(SaccadeError, ValueError):
    """An argument, option or configuration value that cannot be accepted."""

    exit_code = 2


class DamagedRunError(ConfigError):
    """A finished run whose files were changed or deleted after it wrote them.

    Args:
        folder: Folder of the run.
        faults: One phrase per damaged file.
    """

    def __init__(self, folder: Path, faults: Sequence[str]) -> None:
        super().__init__(f"{str(folder)!r} is damaged: {'; '.join(faults)}")
        self.faults = list(faults)


class RunLockedError(ConfigError):
    """A run folder in which another process is training."""


class DataError(SaccadeError, ValueError):
    """A data set or file that is missing, damaged or of the wrong kind."""

    exit_code = 3


class TrainingError(SaccadeError, RuntimeError):
    """Training cannot continue, for example after a non-finite loss or without memory."""

    exit_code = 4


class ExportError(SaccadeError, RuntimeError):
    """A model that cannot be exported, or whose exported file gives other outputs."""

    exit_code = 4


class FullDiskError(TrainingError):
    """The disk has no space for a file that must be written."""


class Preempted(SaccadeError, RuntimeError):  # noqa: N818 - it names an event, not a fault
    """A run that was stopped by a signal, saved its state and can be resumed."""

    exit_code = 75


class Stopped(SaccadeError, RuntimeError):  # noqa: N818 - it names an event, not a fault
    """A run that its caller ended early and that is not resumed, such as a pruned trial."""

    exit_code = 4


class TakenOver(SaccadeError, RuntimeError):  # noqa: N818 - it names an event, not a fault
    """A run that another process has taken over; this process must stop writing to it."""

    exit_code = 4


class UnknownNameError(ConfigError):
    """A name that is not in a table; the message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = near_matches(str(name), known)
        hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "."
        shown = shorten(repr(name), MAX_VALUE)
        super().__init__(f"unknown {kind} {shown}{hint} Known: {listed(known)}.")
        self.kind, self.name, self.near = kind, name, near


def listed(names: Iterable[str]) -> str:
    """Join names with commas; names beyond `MAX_LIST_CHARS` are only counted. "" becomes ''."""
    names = [name or "''" for name in names]
    room, shown = MAX_LIST_CHARS, 0
    while shown < len(names) and len(names[shown]) + 2 <= room:
        room -= len(names[shown]) + 2
        shown += 1
    more = len(names) - shown
    return ", ".join([*names[:shown], *([f"and {more:,} more"] if more else [])]) or "none"


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that the device or the host is out of memory."""
    kind = type(error).__name__
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":  # Python's; torch's, on a GPU
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words: tuple[str, ...] = ()
    if isinstance(error, SystemError):  # of compiled code whose allocation failed
        words = ("without exception set", "without setting an exception", "with an exception set")
    elif isinstance(error, RuntimeError):  # of torch, of oneDNN, of Python
        words = ("can't allocate memory", "could not create a primitive", "can't start new thread")
    elif isinstance(error, ImportError):  # the system's linker
        words = ("failed to map segment", "annot allocate memory", "cannot create shared object")
    elif kind == "PanicException":  # safetensors'; not a subclass of Exception
        words = ("PyObject pointer is null", "memory allocation", "capacity overflow")
    return any(word in str(error) for word in words)


def is_full_disk(error: OSError) -> bool:
    """True if an operating system error says that the disk is full."""
    return error.errno in FULL_DISK


def is_transient(error: BaseException | None) -> bool:
    """True if the error, or an error that caused it, is a failure of a disk or file server."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in TRANSIENT:
            return True
        if isinstance(error, SaccadeError) and error.is_transient:
            return True
        if "disk I/O error" in str(error):  # the message of SQLite
            return True
        error = error.__cause__ or error.__context__
    return False


def reading_error(
    path: Path, error: OSError, kind: type[SaccadeError] = ConfigError
) -> SaccadeError:
    """The error to raise if a file or folder that the user named cannot be read."""
    raised = kind(f"{error.filename or str(path)!r} cannot be read: {error.strerror}")
    raised.is_transient = error.errno in TRANSIENT
    return raised


def writing_error(
    message: str, error: OSError, kind: type[SaccadeError], advice: str = ""
) -> SaccadeError:
    """The error to raise if something cannot be written.

    Args:
        message: The message before the reason.
        error: The operating system's error, which gives the reason.
        kind: Class of the new error, unless the disk is full.
        advice: A hint after the reason.
    """
    raised = FullDiskError if is_full_disk(error) else kind
    name = "" if error.filename is None or str(error.filename) in message else f"{error.filename}: "
    reason = f"{name}{error.strerror or error}"
    found = raised(f"{message}: {reason}" + (f"; {advice}" if advice else ""))
    found.is_transient = error.errno in TRANSIENT
    return found


def shorten(text: str, longest: int) -> str:
    """Cut a text to `longest` characters, with an ellipsis at the end if it is longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def first_line(error: BaseException, longest: int) -> str:
    """The first line of an error's message, cut; the name of its class if it has no message."""
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[0], longest)


def near_matches(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that `name` may stand for, best first.

    If `name` is a name of another library (`saccade.synonyms`), its synonyms are returned.
    Otherwise known names with a similar spelling are returned, except those much less similar than
    the best. A shared section, such as `train` in `train.epochs`, does not count as similarity.
    """
    known = list(known)
    if len(name) > MAX_NAME or (has_no_counterpart(name) and name not in known):
        return []
    if meant := [other for other in synonyms(name) if other in known and other != name]:
        return meant[:3]
    near = get_close_matches(name, known, n=len(known) or 1, cutoff=0.6)
    likeness = {other: _similarity(name, other) for other in near}
    least = max(MIN_SIMILARITY, max(likeness.values(), default=0.0) - MARGIN)
    near = [other for other in near if likeness[other] >= least]
    return sorted(near, key=likeness.__getitem__, reverse=True)[:3]


def _similarity(name: str, other: str) -> float:
    own, others = (word.rpartition(".")[2] for word in (name, other))
    return SequenceMatcher(None, others, own).ratio()
