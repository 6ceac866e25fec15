"""What a person sees of a comparison under way, on stderr: a live table, or a line a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from saccade.errors import SaccadeError
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job

__all__ = ["Watcher"]

POLL_S = 0.5


class Watcher:
    """Looks at the folder every so often, shows how it stands, and calls when a run has ended.

    Args:
        folder: The comparison, whoever works on it.
        since: Runs that failed before are tried again.
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
        self._look()
        if self._live is not None:
            self._live.stop()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        new = [
            job
            for job in self.folder.plan.jobs()
            if job not in self._ended and self._has_ended(job)
        ]
        self._ended.update(new)
        for number, job in enumerate(new, len(self._ended) - len(new) + 1):
            if self._plain:
                self._say(f"{self._line(job)} ({number} of {len(self.folder.plan.jobs())})")
        if new:
            with suppress(SaccadeError):  # the comparison itself comes to it at its end
                self.on_change()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _has_ended(self, job: Job) -> bool:
        return self.folder.state(job, since=self.since) != "waiting"

    def _line(self, job: Job) -> str:
        summary = self.folder.run(job).summary()
        if not summary:
            return f"{job.name} failed: {self.folder.run(job).status().get('message')}"
        return f"{job.name}: {summary['test_accuracy']:.2%} in {summary['seconds']:.1f} s"

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _table(self) -> Any:
        """A row an attention, a column a seed and fold."""
        from rich import box
        from rich.table import Table

        plan = self.folder.plan
        jobs = plan.jobs()
        columns = [job for job in jobs if job.attention == plan.attentions[0]]
        done = f"{len(self._ended)} of {len(jobs)} runs"
        table = Table("attention", box=box.SIMPLE, pad_edge=False, caption=done)
        for job in columns:
            table.add_column(job.name.partition("/")[2], justify="right", no_wrap=True)
        for attention in plan.attentions:
            cells = [self._cell(Job(attention, job.seed, job.fold)) for job in columns]
            table.add_row(attention, *cells)
        return table

    def _cell(self, job: Job) -> str:
        run = self.folder.run(job)
        if summary := run.summary():
            return f"{summary['test_accuracy']:.2%}"
        status = run.status()
        if self._has_ended(job):
            return "[red]failed[/]"
        if not status:
            return "[dim]-[/]"
        return f"[cyan]{status['epoch']}/{self.folder.plan.base.train.epochs}[/]"


def _start_live() -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
    live.start()
    return live
