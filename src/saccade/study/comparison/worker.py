"""`python -m saccade.study.comparison.worker DIR TIME`: a process of `saccade compare --jobs`."""

from __future__ import annotations

import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.work import work
from saccade.study.workers import choose_gpu, join_parent

__all__ = ["main"]


def main(path: Path, since: float) -> int:
    """Work on the comparison in a folder; return the exit code."""
    join_parent()
    choose_gpu()
    try:
        work(ComparisonFolder.open(path), since=since)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        print(f"saccade: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
