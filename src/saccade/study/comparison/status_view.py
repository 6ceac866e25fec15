"""The state of each run of a comparison on a terminal: a table, then reasons and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from saccade.study.comparison.status import RunStatus, State

__all__ = ["StatusView"]

STYLES: dict[State, str] = {"running": "cyan", "done": "green", "failed": "red"}
ORDER: tuple[State, ...] = ("done", "running", "queued", "waiting", "interrupted", "failed")
URGENCY: tuple[State, ...] = ("running", "failed", "interrupted", "queued", "waiting", "done")
"""Which runs are shown if there is no room for all."""

JOB_COLUMNS = 70
"""Width from which there is a column with the jobs of Slurm."""

FRAME_LINES = 6
"""Lines beside the rows and the notes: the numbers, the head of the table, and what is left out."""

MIN_NOTES = 6
"""Notes for which there is room on a screen before there is room for all runs."""


@dataclass(frozen=True)
class StatusView:
    """The states of runs, for a rich console of any width.

    Attributes:
        runs: The runs.
        fits_screen: Leave rows out if the terminal has too few lines.
    """

    runs: Sequence[RunStatus]
    fits_screen: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The numbers of runs by state, the table, and the notes."""
        notes, rows = self._notes(), len(self.runs)
        if self.fits_screen:
            rows = max(1, console.height - FRAME_LINES - len(notes[:MIN_NOTES]))
        shown = self._most_urgent(rows)
        yield Text(self._counts())
        yield self._table(shown, has_jobs=options.max_width >= JOB_COLUMNS)
        if left := len(self.runs) - len(shown):
            yield Text(f"and {left} more", style="dim")
        yield from notes

    def _counts(self) -> str:
        counts = Counter(run.state for run in self.runs)
        return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])

    def _most_urgent(self, number: int) -> list[RunStatus]:
        """At most `number` runs, in the order of the plan."""
        by_urgency = sorted(self.runs, key=lambda run: URGENCY.index(run.state))[:number]
        return [run for run in self.runs if run in by_urgency]

    def _table(self, runs: Sequence[RunStatus], *, has_jobs: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("run", "state"):
            table.add_column(name, no_wrap=True)
        table.add_column("progress", overflow="fold")
        has_jobs = has_jobs and any(run.job for run in self.runs)
        if has_jobs:
            table.add_column("job", no_wrap=True)
        for run in runs:
            style = STYLES.get(run.state, "dim")
            cells = [escape(run.run), f"[{style}]{run.state}[/]", run.progress]
            table.add_row(*cells, *([run.job] if has_jobs else []))
        return table

    def _notes(self) -> list[Text]:
        """Why runs wait, once for each reason; why runs failed, and the logs of their jobs."""
        waits = Counter(
            (run.state, run.reason)
            for run in self.runs
            if run.reason and run.state in ("queued", "waiting")
        )
        notes = [Text(f"{number} {state}: {reason}") for (state, reason), number in waits.items()]
        for run in self.runs:
            if run.state not in ("interrupted", "failed"):
                continue
            notes.append(Text(f"{run.run}: {run.reason or run.state}", style="red"))
            if run.log:
                notes.append(Text(f"  {run.log}"))
        return notes
