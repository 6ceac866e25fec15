"""Worker loop of a comparison: take a free run, train it, and repeat until all runs have ended.

Any number of workers on one or several machines can share one folder. A worker that finds all
remaining runs taken waits, so that it can take over a run if another worker dies.

If a run raises an error of its own, it has failed. If its worker dies or the disk fails, it is
tried again, up to `MAX_ATTEMPTS` times in a row from the same step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from saccade.errors import (
    FullDiskError,
    Preempted,
    RunLockedError,
    Stopped,
    TakenOver,
    TrainingError,
    is_transient,
)
from saccade.study.attempts import MAX_ATTEMPTS, one_line, reason_of
from saccade.study.claims import Claim
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.study.workers import leave_if_asked
from saccade.train import train
from saccade.train.progress import print_line
from saccade.train.signals import StopRequest, stop_signals

__all__ = ["tidy", "work"]

POLL_S = 0.5
RETRY_S = 1.0


def work(folder: ComparisonFolder, *, since: float) -> None:
    """Train the remaining runs of a comparison.

    Args:
        folder: The comparison.
        since: Runs that failed before this time are tried again, once.

    Raises:
        Preempted: A signal asked to stop; progress is saved.
        ConfigError: A run cannot be started.
        DataError: The data cannot be read.
        FullDiskError: The disk is full.
    """
    with stop_signals() as stop:
        failures = 0
        while waiting := folder.waiting(since):
            try:
                has_worked = any(_try(folder, job, since) for job in waiting)
                failures = 0
            except Exception as error:
                failures += 1
                if not is_transient(error) or failures == MAX_ATTEMPTS:
                    raise
                print_line(f"{one_line(error)}; trying again ({failures + 1} of {MAX_ATTEMPTS})")
                has_worked = False
            if not has_worked:
                _wait(stop)
            leave_if_asked(stop, "two runs")


def _try(folder: ComparisonFolder, job: Job, since: float) -> bool:
    """Train a run if no other worker has it. Return False if another worker has it."""
    name = job.name.replace("/", "-")
    claim = folder.claims.take(name)
    if claim is None:
        return False
    try:
        if folder.state(job, since=since) != "waiting":
            return True
        step = folder.run(job).newest_step()
        failures = folder.attempts.failures(name, step, since=since)
        if len(failures) >= MAX_ATTEMPTS:
            folder.note_failure(job, f"{len(failures)} attempts failed: {reason_of(failures)}")
            return True
        attempt = folder.attempts.begin(name, step)
        try:
            with folder.attempts.ending(attempt):
                _run(folder, job, claim)
        except RunLockedError:
            return False  # its owner only seemed dead and still holds the run
        except TakenOver:
            return True
        except Exception as error:
            if not is_transient(error):
                raise
            _report_retry(folder, job, error, len(failures) + 1)
    finally:
        claim.give_back()
    return True


def _report_retry(folder: ComparisonFolder, job: Job, error: Exception, number: int) -> None:
    """Report a disk error, and mark the run to be tried again."""
    message = one_line(error)
    print_line(f"{job.name}: {message} (attempt {number} of {MAX_ATTEMPTS})")
    if folder.state(job) != "finished":
        with suppress(OSError):
            folder.note_retry(job, message)
    time.sleep(RETRY_S)


def _run(folder: ComparisonFolder, job: Job, claim: Claim) -> None:
    """Train a run. An error of the run itself is recorded in its status."""
    config, begun = folder.plan.config(job), time.time()
    try:
        train(
            config,
            folder.run(job).path,
            resume=True,
            quiet=True,
            initial=folder.initial(job.seed),
            on_epoch=_stop_if_taken_over(claim),
        )
    except (FullDiskError, Preempted, RunLockedError, TakenOver, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in a compiled library is not an Exception
        if is_transient(error):
            raise
        if folder.state(job, since=begun) == "waiting":
            folder.note_failure(job, one_line(error))
        if not isinstance(error, TrainingError | Stopped):
            raise
    finally:
        tidy(compiled=config.train.compile)


def _stop_if_taken_over(claim: Claim) -> Callable[[Mapping[str, Any]], None]:
    """Epoch callback that raises if another worker has taken over the run."""

    def watch(row: Mapping[str, Any]) -> None:
        if not claim.is_ours:
            raise TakenOver("another worker took the run over")

    return watch


def tidy(*, compiled: bool) -> None:
    """Free the GPU memory and compiled code of a run before the next run in this process."""
    if compiled:
        torch.compiler.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _wait(stop: StopRequest) -> None:
    until = time.monotonic() + POLL_S
    while not stop.signal and time.monotonic() < until:
        time.sleep(0.05)
