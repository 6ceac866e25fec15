"""Progress of a comparison on stderr: a live table, or one line per run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from saccade.errors import SaccadeError
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.study.workers import tell_skipped
from saccade.train.progress import print_line

__all__ = ["Watcher"]

POLL_S = 0.5


class Watcher:
    """Polls the folder of a comparison, shows its progress, and reports when runs end.

    Args:
        folder: The comparison, including runs of other workers.
        since: Runs that failed before this time count as not ended, since they are tried again.
        on_change: Called when a run has ended.
        quiet: Show nothing.
    """

    def __init__(
        self,
        folder: ComparisonFolder,
        *,
        since: float,
        on_change: Callable[[], Any],
        quiet: bool,
    ) -> None:
        self.folder, self.since, self.on_change = folder, since, on_change
        self._ended: set[Job] = {job for job in folder.plan.jobs() if self._has_ended(job)}
        self._live = _start_live() if not quiet and sys.stderr.isatty() else None
        self._plain = not quiet and self._live is None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        if self._plain and self._ended:
            self._say(f"{len(self._ended)} of {len(self.folder.plan.jobs())} runs are done already")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            for job in self._ended:  # these lines would have broken the live table
                tell_skipped(self.folder.run(job))

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._poll()

    def _poll(self) -> None:
        new = [
            job
            for job in self.folder.plan.jobs()
            if job not in self._ended and self._has_ended(job)
        ]
        self._ended.update(new)
        for number, job in enumerate(new, len(self._ended) - len(new) + 1):
            if self._live is None:
                tell_skipped(self.folder.run(job))
            if self._plain:
                self._say(f"{self._line(job)} ({number} of {len(self.folder.plan.jobs())})")
        if new:
            with suppress(SaccadeError):  # raised again at the end of the comparison
                self.on_change()
        if self._live is not None:
            with suppress(OSError):  # the terminal was closed
                self._live.update(self._table(self._live.console), refresh=True)

    def _has_ended(self, job: Job) -> bool:
        return self.folder.state(job, since=self.since) != "waiting"

    def _line(self, job: Job) -> str:
        summary = self.folder.summary(job)
        if not summary:
            message = self.folder.run(job).status().get("message") or "its files are damaged"
            return f"{job.name} failed: {message}"
        return f"{job.name}: {summary['test_accuracy']:.2%} in {summary['seconds']:.1f} s"

    def _say(self, line: str) -> None:
        print_line(line)

    def _table(self, console: Console) -> Table:
        """Table with a row per attention and a column per run, or counts if that is too wide."""
        plan = self.folder.plan
        columns = [job for job in plan.jobs() if job.attention == plan.attentions[0]]
        cells = {
            attention: [self._cell(Job(attention, job.seed, job.fold)) for job in columns]
            for attention in plan.attentions
        }
        names = [job.name.partition("/")[2] for job in columns]
        table = self._drawn(names, cells)
        unbounded = console.options.update(max_width=10_000)
        if console.measure(table, options=unbounded).maximum <= console.width:
            return table
        ended = {
            attention: [f"{sum(job.attention == attention for job in self._ended)}/{len(columns)}"]
            for attention in plan.attentions
        }
        return self._drawn(["done"], ended)

    def _drawn(self, columns: Sequence[str], cells: Mapping[str, Sequence[str]]) -> Table:
        done = f"{len(self._ended)} of {len(self.folder.plan.jobs())} runs"
        table = Table("attention", box=box.SIMPLE, pad_edge=False, caption=done)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for attention, own in cells.items():
            table.add_row(attention, *own)
        return table

    def _cell(self, job: Job) -> str:
        if summary := self.folder.summary(job):
            return f"{summary['test_accuracy']:.2%}"
        status = self.folder.run(job).status()
        if self._has_ended(job):
            return "[red]failed[/]"
        if not status:
            return "[dim]-[/]"
        return f"[cyan]{status['epoch']}/{self.folder.plan.base.train.epochs}[/]"


def _start_live() -> Live:
    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
    live.start()
    return live
