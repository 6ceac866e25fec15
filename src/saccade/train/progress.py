"""What a person sees while a run goes on, on stderr: a live bar on a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["LiveReporter", "PlainReporter", "Reporter", "SilentReporter", "choose_reporter"]


class Reporter(Protocol):
    """Is told what happens."""

    def start(self, total_steps: int, done_steps: int) -> None:
        """The run begins, or goes on, at a step."""

    def note(self, message: str) -> None:
        """Something worth a line."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of `metrics.jsonl`."""

    def close(self) -> None:
        """The run ends."""


class SilentReporter:
    """Says nothing: for processes other than the main one, and for `--quiet`."""

    def start(self, total_steps: int, done_steps: int) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainReporter(SilentReporter):
    """A line an epoch."""

    def note(self, message: str) -> None:
        """Print the message."""
        print(message, file=sys.stderr, flush=True)  # noqa: T201

    def row(self, row: Mapping[str, Any]) -> None:
        """Print epochs and the result."""
        if row["kind"] != "step":
            self.note(describe(row))


class LiveReporter(SilentReporter):
    """A bar with loss, accuracy, images a second and time left, above it a line an epoch."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
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
        words.append(f"{row['img_per_s']:,.0f} img/s")
        self._progress.update(self._task, description="  ".join(filter(None, words)))

    def close(self) -> None:
        """Close the bar."""
        self._progress.stop()


def choose_reporter(*, is_main: bool, quiet: bool) -> Reporter:
    """The reporter that fits the process and its stderr."""
    if quiet or not is_main or sys.stderr is None:  # closed, as by 2>&-
        return SilentReporter()
    return LiveReporter() if sys.stderr.isatty() else PlainReporter()


def describe(row: Mapping[str, Any]) -> str:
    """One line for a row of metrics."""
    if row["kind"] == "test":
        return f"test: {row['correct']} of {row['count']} right, accuracy {row['accuracy']:.4f}"
    words = [f"epoch {row['epoch']:>3}", f"loss {row['train_loss']:.4f}"]
    words.append(f"train acc {row['train_accuracy']:.4f}")
    if row["val_accuracy"] is not None:
        words.append(f"val acc {row['val_accuracy']:.4f}")
    words += [f"lr {row['lr']:.2e}", f"{row['img_per_s']:,.0f} img/s", f"{row['seconds']:.1f} s"]
    return "  ".join(words)
