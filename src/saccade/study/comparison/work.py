"""The work of a comparison: whatever run nobody has, until all are done.

Any number of workers do this on one folder, on one machine or several. One that finds all remaining
runs taken waits for them, so that the death of another worker loses nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from saccade.errors import FullDiskError, SaccadeError, Stopped, TrainingError
from saccade.study.claims import Claim
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.study.workers import leave_if_asked
from saccade.train import train
from saccade.train.stops import StopRequest, stop_signals

__all__ = ["tidy", "work"]

POLL_S = 0.5


def work(folder: ComparisonFolder, *, since: float) -> None:
    """Run what is left of a comparison.

    Args:
        folder: The comparison.
        since: Runs that failed before this time are tried again, once.

    Raises:
        Preempted: A signal asked to stop; what was done is saved.
        ConfigError: A run cannot be started.
        DataError: The data cannot be read.
        FullDiskError: The disk is full.
    """
    with stop_signals() as stop:
        while waiting := folder.waiting(since):
            if not any(_try(folder, job, since) for job in waiting):
                _wait(stop)
            leave_if_asked(stop, "two runs")


def _try(folder: ComparisonFolder, job: Job, since: float) -> bool:
    """Do a run, if it is free."""
    claim = folder.claims.take(job.name.replace("/", "-"))
    if claim is None:
        return False
    try:
        if folder.state(job, since=since) == "waiting":
            _run(folder, job, claim)
    finally:
        claim.give_back()
    return True


def _run(folder: ComparisonFolder, job: Job, claim: Claim) -> None:
    config = folder.plan.config(job)
    try:
        train(
            config,
            folder.run(job).path,
            resume=True,
            quiet=True,
            initial=folder.initial(job.seed),
            on_epoch=_stop_if_taken(claim),
        )
    except FullDiskError:
        raise  # no other run would fare better
    except (TrainingError, Stopped):
        return  # the run's own status says why
    except SaccadeError:
        raise
    except Exception as error:
        folder.note_failure(job, f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    finally:
        tidy(compiled=config.train.compile)


def _stop_if_taken(claim: Claim) -> Callable[[Mapping[str, Any]], None]:
    """Leave a run alone that another machine took over, having thought this one dead."""

    def watch(row: Mapping[str, Any]) -> None:
        if not claim.is_ours:
            raise Stopped("another worker took the run over")

    return watch


def tidy(*, compiled: bool) -> None:
    """Leave nothing of a run to the next one in this process: GPU memory, or compiled code."""
    if compiled:
        torch.compiler.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _wait(stop: StopRequest) -> None:
    until = time.monotonic() + POLL_S
    while not stop.signal and time.monotonic() < until:
        time.sleep(0.05)
