"""A search whose trials take a second, and bodies of processes that work on it."""

import sys
from functools import partial
from pathlib import Path

from saccade.config import Config
from saccade.errors import SaccadeError
from saccade.runs import RunFolder
from saccade.study.tuning import Settings, TuningFolder, start_search
from saccade.study.tuning.trials import work
from tests.train.tiny_runs import tiny

SEARCH = "search.optim.lr={low: 0.001, high: 0.1, log: true}"


def tiny_search(*overrides: str) -> Config:
    return tiny("train.ema_decay=null", "train.epochs=3", SEARCH, *overrides)


def start_tiny(out: Path, *overrides: str, trials: int) -> TuningFolder:
    return start_search(out, tiny_search(*overrides), Settings("tiny", trials))


def work_and_exit(out: Path, index: int = 0) -> None:
    """Body of a child process: a worker."""
    sys.stderr = (out.parent / "stderr").open("a")
    try:
        say = partial(print, file=sys.stderr, flush=True)
        work(TuningFolder.open(out), say, index=index)
    except SaccadeError as error:
        sys.exit(error.exit_code)


def epochs_of(run: RunFolder) -> list[int]:
    return [row["epoch"] for row in run.metrics("epoch")]
