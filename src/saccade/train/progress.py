"""Progress of a run on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from saccade.nouns import speed_unit

__all__ = [
    "LiveReporter",
    "PlainReporter",
    "SilentReporter",
    "choose_reporter",
    "print_line",
]

WIDE = 80
"""Columns that a terminal needs to show the bar and the time left."""
ROOM_FOR_ALL, ROOM_FOR_COUNT = 24, 12
"""Columns taken by the step count with bar and time left, and by the step count alone."""


class SilentReporter:
    """Receives the events of a run and shows none: for `--quiet` and all but the main process."""

    def start(self, total_steps: int, done_steps: int) -> None:
        """Called once, when the run starts or resumes."""

    def note(self, message: str) -> None:
        """Called with a message for the user."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Called with each row of `metrics.jsonl`."""

    def close(self) -> None:
        """Called when the run ends."""


class PlainReporter(SilentReporter):
    """Prints one line per epoch."""

    def note(self, message: str) -> None:
        """Print the message."""
        print_line(message)

    def row(self, row: Mapping[str, Any]) -> None:
        """Print epochs and the result."""
        if row["kind"] != "step":
            self.note(describe(row))


class LiveReporter(SilentReporter):
    """A bar with loss, accuracy, images per second and time left, below one line per epoch.

    A narrow terminal shows neither bar nor time left, and as many of the values as fit.
    """

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        is_wide = console.width >= WIDE
        self._room = console.width - (ROOM_FOR_ALL if is_wide else ROOM_FOR_COUNT)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            *([progress.BarColumn()] if is_wide else []),
            progress.MofNCompleteColumn(),
            *([progress.TimeRemainingColumn()] if is_wide else []),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)
        self._accuracy = ""

    def start(self, total_steps: int, done_steps: int) -> None:
        """Open the bar."""
        self._progress.update(self._task, total=total_steps, completed=done_steps)
        self._progress.start()

    def note(self, message: str) -> None:
        """Print the message above the bar."""
        self._progress.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def row(self, row: Mapping[str, Any]) -> None:
        """Move the bar; print epochs and the result."""
        self._progress.update(self._task, completed=row["step"])
        if row["kind"] != "step":
            self.note(describe(row))
        if row["kind"] == "test":
            return
        if row.get("val_accuracy") is not None:
            self._accuracy = f"val acc {row['val_accuracy']:.4f}"
        begun, loss = (
            (row["epoch"] + 1, row["loss"])
            if row["kind"] == "step"
            else (row["epoch"], row["train_loss"])
        )
        words = [f"epoch {begun}", f"loss {loss:.4f}", self._accuracy]
        words.append(_speed(row))
        self._progress.update(self._task, description=fitting(words, self._room))

    def close(self) -> None:
        """Close the bar."""
        self._progress.stop()


def fitting(words: Sequence[str], room: int) -> str:
    """The leading words that fit into `room` columns, joined; empty words are dropped."""
    kept: list[str] = []
    for word in filter(None, words):
        if len("  ".join([*kept, word])) > room:
            break
        kept.append(word)
    return "  ".join(kept)


class _Lossy(SilentReporter):
    """Stops reporting when the terminal is gone, so that the run continues."""

    def __init__(self, reporter: SilentReporter) -> None:
        self._reporter = reporter

    def start(self, total_steps: int, done_steps: int) -> None:
        self._try(lambda: self._reporter.start(total_steps, done_steps))

    def note(self, message: str) -> None:
        self._try(lambda: self._reporter.note(message))

    def row(self, row: Mapping[str, Any]) -> None:
        self._try(lambda: self._reporter.row(row))

    def close(self) -> None:
        self._try(lambda: self._reporter.close())

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError:
            self._reporter = SilentReporter()


def print_line(line: str) -> None:
    """Print a line on stderr; do nothing if stderr is gone or closed."""
    with suppress(OSError, ValueError):  # a pipe or terminal that is gone; a closed stream
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def choose_reporter(*, is_main: bool, quiet: bool) -> SilentReporter:
    """The reporter for this process and its stderr."""
    if quiet or not is_main or sys.stderr is None:  # None if closed, as by 2>&-
        return SilentReporter()
    return _Lossy(LiveReporter() if sys.stderr.isatty() else PlainReporter())


def describe(row: Mapping[str, Any]) -> str:
    """One line for a row of metrics."""
    if row["kind"] == "test":
        result = f"test: {row['correct']} of {row['count']} right, accuracy {row['accuracy']:.4f}"
        return f"{result}; {row['skipped']} could not be read" if row.get("skipped") else result
    words = [f"epoch {row['epoch']:>3}", f"loss {row['train_loss']:.4f}"]
    words.append(f"train acc {row['train_accuracy']:.4f}")
    if row["val_accuracy"] is not None:
        words.append(f"val acc {row['val_accuracy']:.4f}")
    words += [f"lr {row['lr']:.2e}", _speed(row), f"{row['seconds']:.1f} s"]
    return "  ".join(words)


def _speed(row: Mapping[str, Any]) -> str:
    return f"{row['img_per_s']:,.0f} {speed_unit(row.get('noun', 'image'))}"
