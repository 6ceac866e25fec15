"""`python -m saccade.study.tuning.worker DIR TIME [INDEX]`: a worker process of a search."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.workers import WORKER, choose_gpu, join_parent, leave_worker
from saccade.train.progress import print_line

__all__ = ["main"]


def main(path: Path, since: float, unit: str | None = None) -> int:
    """Work on the search in a folder; return the exit code."""
    join_parent()  # first, because importing torch takes seconds
    from saccade.data.bad_images import leave_to_parent
    from saccade.study.tuning.folder import TuningFolder
    from saccade.study.tuning.trials import work

    leave_to_parent()
    index = int(os.environ[WORKER] if unit is None else unit)
    choose_gpu()

    def say(line: str) -> None:
        print_line(f"worker {index}  {line}")

    try:
        work(TuningFolder.open(path), say, since=since, index=index)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        say(f"saccade: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    folder, since, *units = sys.argv[1:]
    leave_worker(lambda: main(Path(folder), float(since), *units))
