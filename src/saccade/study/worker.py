"""`python -m saccade.study.worker DIR TIME [UNIT]`: a worker of a comparison or a search.

A unit of a comparison is the name of a run, that of a search such as `tuning/softmax`, or
`measures`; a unit of a search is the index of a worker. TIME is when the command began.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.workers import WORKER, choose_gpu, join_parent, leave_worker
from saccade.train.progress import print_line

__all__ = ["main"]


def main(path: Path, since: float, unit: str | None = None) -> int:
    """Work on the study in a folder; return the exit code."""
    join_parent()  # first, because importing torch takes seconds
    from saccade.data.bad_images import leave_to_parent
    from saccade.study.folder import kind_of

    leave_to_parent()
    choose_gpu()
    teller = ""
    try:
        if kind_of(path) == "compare":
            _compare(path, since, unit)
        else:
            index = int(os.environ[WORKER] if unit is None else unit)
            teller = f"worker {index}  "
            _search(path, since, index, teller)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        print_line(f"{teller}saccade: {error}")
        return error.exit_code
    return 0


def _compare(path: Path, since: float, unit: str | None) -> None:
    from saccade.study.comparison.folder import ComparisonFolder
    from saccade.study.comparison.measures import MEASURES, measure
    from saccade.study.comparison.search import is_searching, search
    from saccade.study.comparison.work import work

    folder = ComparisonFolder.open(path)
    if unit == MEASURES:
        measure(folder)
    elif is_searching(folder):
        search(folder, since=since, unit=unit)
    else:
        work(folder, since=since, unit=unit)


def _search(path: Path, since: float, index: int, teller: str) -> None:
    from saccade.study.tuning.folder import TuningFolder
    from saccade.study.tuning.trials import work

    work(
        TuningFolder.open(path),
        lambda line: print_line(teller + line),
        since=since,
        index=index,
    )


if __name__ == "__main__":
    folder, since, *units = sys.argv[1:]
    leave_worker(lambda: main(Path(folder), float(since), *units))
