"""Table of the images that runs skipped because they could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from saccade.report.collect import Run, plain
from saccade.report.page import Cell, Column, Table

__all__ = ["skipped_table"]

SPLITS = {"train": "training", "val": "validation", "test": "test"}


def skipped_table(runs: Sequence[Run]) -> Table | None:
    """Each skipped image and the number of runs that skipped it; None without skipped images."""
    found = Counter(image for run in runs for image in _skipped(run))
    if not found:
        return None
    nouns = {run.noun for run in runs}
    noun = nouns.pop() if len(nouns) == 1 else "input"
    columns = (
        Column("split", "split", is_number=False),
        Column("image", f"{noun} that could not be read", is_number=False),
        Column("runs", "runs"),
    )
    rows = [
        [Cell(split, split), Cell(fault, fault), Cell(str(times), times)]
        for (split, fault), times in sorted(found.items())
    ]
    note = (
        f"Skipped {noun}s count in no loss and no accuracy. The first 20 of each split of a run "
        "are listed."
    )
    return Table("skipped", f"Skipped {noun}s", columns, rows, note, folded=True)


def _skipped(run: Run) -> Iterator[tuple[str, str]]:
    """Split and error of each listed image, without the path of the data folder."""
    noted = run.summary.get("skipped_images")
    root = "" if run.config.data.root is None else f"{run.config.data.root}/"
    for split, part in noted.items() if isinstance(noted, dict) else ():
        faults = part.get("faults") if isinstance(part, dict) else None
        for fault in faults if isinstance(faults, list) else ():
            told = plain(fault).removeprefix("bad image ")
            yield SPLITS.get(plain(split), plain(split)), told.removeprefix(root)
