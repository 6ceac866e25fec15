"""The runs of a comparison: their common initial weights, and the loop of a worker.

The worker takes a free run, trains it, and repeats this until all runs have ended.

Several workers of a machine can share one folder. A worker that finds all remaining runs taken
waits, so that it can take over a run if another worker dies. A job of Slurm works on one run only.

If a run raises an error of its own, it has failed. If its worker dies or the disk fails, it is
tried again, up to `MAX_ATTEMPTS` times in a row from the same step.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saccade.data import DatasetInfo
from saccade.errors import (
    ConfigError,
    FullDiskError,
    Preempted,
    RunLockedError,
    Stopped,
    TakenOver,
    TrainingError,
    is_transient,
    writing_error,
)
from saccade.io import check_regular, locked
from saccade.models.weight_files import write_tensors
from saccade.study.attempts import MAX_ATTEMPTS, one_line, reason_of
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job
from saccade.study.workers import leave_if_asked
from saccade.train import build_model, train
from saccade.train.distributed import full
from saccade.train.initialize import read_configured
from saccade.train.progress import print_line
from saccade.train.signals import stop_signals

__all__ = ["tidy", "work", "write_initial_weights"]

POLL_S = 0.5
RETRY_S = 1.0


def work(folder: ComparisonFolder, *, since: float, unit: str | None = None) -> None:
    """Train the remaining runs of a comparison, or only the run named `unit`.

    Runs that failed before the time `since` are tried again, once.

    Raises:
        Preempted: A signal asked to stop; progress is saved.
        ConfigError: A run cannot be started.
        DataError: The data cannot be read.
        FullDiskError: The disk is full.
    """
    with stop_signals() as stop:
        failures = 0
        while waiting := [job for job in folder.waiting(since) if unit in (None, job.name)]:
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
                stop.wait(POLL_S)
            leave_if_asked(stop, "two runs")


def _try(folder: ComparisonFolder, job: Job, since: float) -> bool:
    """Train a run if no other worker has it. Return False if another worker has it."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder.lock(job.short_name)))
        except BlockingIOError:
            return False
        if folder.state(job, since=since) != "waiting":
            return True
        step = folder.run(job).newest_step()
        failures = folder.attempts.failures(job.short_name, step, since=since)
        if len(failures) >= MAX_ATTEMPTS:
            folder.note_failure(job, f"{len(failures)} attempts failed: {reason_of(failures)}")
            return True
        attempt = folder.attempts.begin(job.short_name, step)
        try:
            with folder.attempts.ending(attempt):
                _run(folder, job)
        except RunLockedError:
            return False  # another process trains in the run's folder
        except TakenOver:
            return True
        except Exception as error:
            if not is_transient(error):
                raise
            _report_retry(folder, job, error, len(failures) + 1)
    return True


def _report_retry(folder: ComparisonFolder, job: Job, error: Exception, number: int) -> None:
    """Report a disk error, and mark the run to be tried again."""
    message = one_line(error)
    print_line(f"{job.name}: {message} (attempt {number} of {MAX_ATTEMPTS})")
    if folder.state(job) != "finished":
        with suppress(OSError):
            folder.note_retry(job, message)
    time.sleep(RETRY_S)


def _run(folder: ComparisonFolder, job: Job) -> None:
    """Train a run. An error of the run itself is recorded in its status."""
    config, begun = folder.plan.config(job), time.time()
    try:
        train(
            config,
            folder.run(job).path,
            resume=True,
            quiet=True,
            initial=folder.initial(job.seed),
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


def tidy(*, compiled: bool) -> None:
    """Free the GPU memory and compiled code of a run before the next run in this process."""
    if compiled:
        torch.compiler.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def write_initial_weights(folder: ComparisonFolder, info: DatasetInfo) -> None:
    """Write the missing weight files, one per seed."""
    plan = folder.plan
    for seed in plan.seeds:
        path = folder.initial(seed)
        if path.exists():
            _check_whole(path)
            continue
        torch.manual_seed(seed)
        fold = None if plan.folds is None else 0
        config = plan.config(Job(plan.baseline, seed, fold))
        network = build_model(config, info)
        if (start := read_configured(config)) is not None:
            start.fill(network, reset_head=config.init.reset_head)
        try:
            _write_whole(path, {name: full(t) for name, t in network.state_dict().items()})
        except OSError as error:
            message = f"cannot write {str(path)!r}"
            raise writing_error(message, error, TrainingError, "go on with --resume") from None


def _check_whole(path: Path) -> None:
    """Raise if a weight file is damaged."""
    try:
        check_regular(path)
        with safe_open(path, "pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error}); delete it to write it again"
        ) from None


def _write_whole(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file atomically."""
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_tensors(tensors, aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
