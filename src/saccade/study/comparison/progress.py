"""Progress of a comparison on stderr: a live table, or one line per run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from saccade.errors import SaccadeError
from saccade.study import slurm_queue
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.study.comparison.status import describe_runs
from saccade.study.comparison.status_view import StatusView
from saccade.study.workers import tell_skipped
from saccade.train.progress import print_line

__all__ = ["Watcher"]

POLL_S = 0.5


class Watcher:
    """Polls the folder of a comparison, shows its progress, and reports when runs end.

    Runs that failed before the time `since` count as not ended, since they are tried again.
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
            print_line(
                f"{len(self._ended)} of {len(self.folder.plan.jobs())} runs are done already"
            )
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
        while not self._stop.wait(self._pause_s()):
            self._poll()

    def _pause_s(self) -> float:
        return slurm_queue.POLL_S if slurm_queue.find_jobs(self.folder.path) else POLL_S

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
                print_line(f"{self._line(job)} ({number} of {len(self.folder.plan.jobs())})")
        if new:
            with suppress(SaccadeError):  # raised again at the end of the comparison
                self.on_change()
        if self._live is not None:
            with suppress(OSError):  # the terminal was closed
                view = StatusView(describe_runs(self.folder), fits_screen=True)
                self._live.update(view, refresh=True)

    def _has_ended(self, job: Job) -> bool:
        return self.folder.state(job, since=self.since) != "waiting"

    def _line(self, job: Job) -> str:
        summary = self.folder.summary(job)
        if not summary:
            message = self.folder.run(job).status().get("message") or "its files are damaged"
            return f"{job.name} failed: {message}"
        return f"{job.name}: {summary['test_accuracy']:.2%} in {summary['seconds']:.1f} s"


def _start_live() -> Live:
    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
    live.start()
    return live
