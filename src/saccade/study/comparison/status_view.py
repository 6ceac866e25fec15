"""The state of each run of a comparison on a terminal: a table, then reasons and logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
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

FOLDED = 10
"""Width from which the progress is printed on several lines; a screen has one line for each run."""

GAP = 3
"""Columns between two cells."""

FRAME_LINES = 6
"""Lines beside the rows and the notes: the numbers, the head of the table, and what is left out."""

MIN_NOTES = 6
"""Lines of notes for which there is room on a screen before there is room for all runs."""


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
        notes, rows, width = self._notes(), len(self.runs), options.max_width
        if self.fits_screen:
            lines = sum(len(note.wrap(console, width)) for note in notes)
            rows = max(1, console.height - FRAME_LINES - min(lines, MIN_NOTES))
        shown = self._most_urgent(rows)
        yield Text(self._counts())
        yield self._table(shown, width)
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

    def _table(self, runs: Sequence[RunStatus], width: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        columns = self._columns(runs, width)
        for name in columns:
            table.add_column(name, no_wrap=name != "progress", overflow="fold")
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells)
        return table

    def _columns(self, runs: Sequence[RunStatus], width: int) -> dict[str, list[Text]]:
        """The cells by column. On a narrow terminal there are no jobs, and less of the progress."""
        columns = {
            "run": [Text(run.run) for run in runs],
            "state": [Text(run.state, STYLES.get(run.state, "dim")) for run in runs],
        }
        if width >= JOB_COLUMNS and any(run.job for run in self.runs):
            columns["job"] = [Text(run.job) for run in runs]
        taken = sum(max(cell.cell_len for cell in cells) + GAP for cells in columns.values())
        room, whole = width - taken - GAP, [run.progress for run in runs]
        short = [text.partition(",")[0] for text in whole]
        needed = max(map(len, whole))
        fits = room >= (needed if self.fits_screen else min(needed, FOLDED))
        if fits or room >= max(len("progress"), *map(len, short)):
            columns["progress"] = [Text(text) for text in (whole if fits else short)]
        return columns

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
