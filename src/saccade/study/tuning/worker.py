"""`python -m saccade.study.tuning.worker DIR`: one of the processes of `saccade tune --jobs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from saccade.errors import Preempted, SaccadeError
from saccade.study.tuning.folder import TuningFolder
from saccade.study.tuning.trials import work
from saccade.study.workers import WORKER, choose_gpu, join_parent

__all__ = ["main"]


def main(path: Path) -> int:
    """Work on the search in a folder; return the exit code."""
    join_parent()
    index = int(os.environ[WORKER])
    choose_gpu()

    def say(line: str) -> None:
        print(f"worker {index}  {line}", file=sys.stderr, flush=True)  # noqa: T201

    try:
        work(TuningFolder.open(path), say)
    except Preempted as error:
        return error.exit_code
    except SaccadeError as error:
        say(f"saccade: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
