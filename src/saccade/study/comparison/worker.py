"""`python -m saccade.study.comparison.worker DIR TIME`: a worker of `saccade compare --jobs`."""

from __future__ import annotations

import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.workers import choose_gpu, join_parent, leave_worker
from saccade.train.progress import print_line

__all__ = ["main"]


def main(path: Path, since: float) -> int:
    """Work on the comparison in a folder; return the exit code."""
    join_parent()  # first, because importing torch takes seconds
    from saccade.data.bad_images import leave_to_parent
    from saccade.study.comparison.folder import ComparisonFolder
    from saccade.study.comparison.work import work

    leave_to_parent()
    choose_gpu()
    try:
        work(ComparisonFolder.open(path), since=since)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        print_line(f"saccade: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    leave_worker(lambda: main(Path(sys.argv[1]), float(sys.argv[2])))
