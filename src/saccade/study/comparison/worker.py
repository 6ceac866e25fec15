"""`python -m saccade.study.comparison.worker DIR TIME [UNIT]`: a worker of a comparison.

A unit is the name of a run, that of a search such as `tuning/softmax`, or `measures`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.workers import choose_gpu, join_parent, leave_worker
from saccade.train.progress import print_line

__all__ = ["main"]


def main(path: Path, since: float, unit: str | None = None) -> int:
    """Work on the comparison in a folder; return the exit code."""
    join_parent()  # first, because importing torch takes seconds
    from saccade.data.bad_images import leave_to_parent
    from saccade.study.comparison.folder import ComparisonFolder
    from saccade.study.comparison.measures import MEASURES, measure
    from saccade.study.comparison.search import is_searching, search
    from saccade.study.comparison.work import work

    leave_to_parent()
    choose_gpu()
    try:
        folder = ComparisonFolder.open(path)
        if unit == MEASURES:
            measure(folder)
        elif is_searching(folder):
            search(folder, since=since, unit=unit)
        else:
            work(folder, since=since, unit=unit)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        print_line(f"saccade: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    folder, since, *units = sys.argv[1:]
    leave_worker(lambda: main(Path(folder), float(since), *units))
