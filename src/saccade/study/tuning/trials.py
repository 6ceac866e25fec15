"""Worker loop of a search: take a trial, run it, record its outcome, until no trial is left.

All trials are in Optuna's storage from the start, as WAITING. A worker takes one by setting its
state to RUNNING, which succeeds for exactly one worker, and notes its own index in the trial. The
worker with that index, or its successor after it died, resumes the trial from its checkpoint. The
values of a trial depend on the seed, its number and the trials that ended before it, not on the
worker.

A trial has failed if it raises an error of its own, or if `MAX_ATTEMPTS` workers in a row died
while running it. After a disk error the trial is tried again, also up to `MAX_ATTEMPTS` times.
Then the search stops and can be resumed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from saccade.config import Config
from saccade.errors import (
    DataError,
    FullDiskError,
    Preempted,
    RunLockedError,
    SaccadeError,
    Stopped,
    TakenOver,
    TrainingError,
    is_transient,
    writing_error,
)
from saccade.io import locked
from saccade.runs import RunFolder
from saccade.study.attempts import MAX_ATTEMPTS, one_line, reason_of
from saccade.study.tuning.folder import TuningFolder
from saccade.study.tuning.results import chosen_epoch, write_results
from saccade.study.tuning.space import draw, trial_config
from saccade.study.workers import leave_if_asked
from saccade.train import train
from saccade.train.signals import stop_signals

if TYPE_CHECKING:
    import optuna

__all__ = ["find_value", "share_unfinished", "work"]

RETRY_S = 1.0
WORKER = "worker"
"""Attribute of a trial: the index of its worker."""

Say = Callable[[str], None]
Outcome = tuple[str, float | None, str]
"""Optuna's state name of an ended trial, its value, and a description."""

T = TypeVar("T")


@dataclass(frozen=True)
class Taken:
    """A trial that this worker has taken, with its values."""

    trial: optuna.Trial
    values: dict[str, Any]


def work(folder: TuningFolder, say: Say, *, since: float = 0.0, index: int = 0) -> None:
    """Run trials until none is left, as the only worker with this index.

    Disk errors before the time `since` do not count.

    Raises:
        DataError: The data cannot be loaded.
        TrainingError: The disk failed too often.
        Preempted: A signal asked to stop; the current trial is saved and can be resumed.
    """

    def tell() -> None:
        say(f"waiting for another worker with the index {index}")

    with stop_signals() as stop, locked(folder.path / f".worker-{index}.lock", on_wait=tell):
        while (taken := _retry(lambda: _take(folder, index), say)) is not None:
            _run_and_record(folder, taken, say, since)
            leave_if_asked(stop, "trials")


def share_unfinished(folder: TuningFolder, workers: int, busy: Set[int] = frozenset()) -> None:
    """Give the trials of workers that no longer exist to the `workers` to come.

    Workers with the indices `busy` are running.
    """
    study = folder.load()
    for frozen in study.get_trials(deepcopy=False):
        if frozen.state.name != "RUNNING":
            continue
        owner = frozen.user_attrs.get(WORKER)
        is_lost = not busy if owner is None else owner >= workers and owner not in busy
        if is_lost:
            study._storage.set_trial_user_attr(frozen._trial_id, WORKER, frozen.number % workers)


def _retry(act: Callable[[], T], say: Say) -> T:
    """Call `act`, and repeat it after disk errors, up to `MAX_ATTEMPTS` calls in total."""
    for number in range(1, MAX_ATTEMPTS):
        try:
            return act()
        except Exception as error:
            if not is_transient(error):
                raise
            say(f"{one_line(error)} (attempt {number} of {MAX_ATTEMPTS})")
            time.sleep(RETRY_S)
    try:
        return act()
    except OSError as error:
        message = "cannot write to the search"
        raise writing_error(message, error, TrainingError, "go on with --resume") from None


def _take(folder: TuningFolder, index: int) -> Taken | None:
    """Take an unfinished trial of this worker, or else the next waiting trial, if any."""
    from optuna.trial import Trial, TrialState

    base, study = folder.base(), folder.load()
    trials = study.get_trials(deepcopy=False)
    own = [t for t in trials if t.state == TrialState.RUNNING and t.user_attrs.get(WORKER) == index]
    waiting = (
        t
        for t in trials[: folder.trials_wanted()]
        if t.state == TrialState.WAITING
        and study._storage.set_trial_state_values(t._trial_id, TrialState.RUNNING)
    )
    frozen = next(iter(own), None) or next(waiting, None)
    if frozen is None:
        return None
    _prepare(study, base, frozen.number)
    trial = Trial(study, frozen._trial_id)
    if WORKER not in frozen.user_attrs:
        trial.set_user_attr(WORKER, index)
    return Taken(trial, draw(trial, base.search))


def _prepare(study: optuna.Study, base: Config, number: int) -> None:
    """Set the study's sampler and pruner for a trial."""
    import numpy as np
    from optuna import pruners, samplers

    tune = base.tune
    seed = int(np.random.SeedSequence([base.run.seed, number]).generate_state(1)[0])
    if tune.sampler == "tpe":
        study.sampler = samplers.TPESampler(
            n_startup_trials=tune.startup_trials, seed=seed, constant_liar=True
        )
    else:
        study.sampler = samplers.RandomSampler(seed=seed)
    if tune.pruner == "median":
        study.pruner = pruners.MedianPruner(tune.startup_trials, tune.warmup_epochs + 1)
    elif tune.pruner == "hyperband":
        epochs = max(base.train.epochs, tune.warmup_epochs + 1)
        study.pruner = pruners.HyperbandPruner(tune.warmup_epochs + 1, epochs)
    else:
        study.pruner = pruners.NopPruner()


def _run_and_record(folder: TuningFolder, taken: Taken, say: Say, since: float) -> None:
    number = taken.trial.number
    say(f"trial {number}: {', '.join(f'{k}={_short(v)}' for k, v in taken.values.items())}")

    def record() -> dict[str, Any] | None:
        saved = taken.trial.study.get_trials(deepcopy=False)[number]
        if not saved.state.is_finished() and outcome is not None:
            _record(taken.trial, *outcome)
        best: dict[str, Any] | None = write_results(folder, taken.trial.study)["best"]
        return best

    try:
        outcome = _attempt(folder, taken, say, since)
        if outcome is None:
            time.sleep(RETRY_S)
            return
        best = _retry(record, say)
    except (RunLockedError, TakenOver) as error:
        say(f"trial {number}: {error}")
        time.sleep(RETRY_S)
        return
    so_far = f"; best so far {best['value']:.4f}, trial {best['number']}" if best else ""
    say(f"trial {number}: {outcome[2]}{so_far}")


def _attempt(folder: TuningFolder, taken: Taken, say: Say, since: float) -> Outcome | None:
    """Run a trial and return its outcome; None after a disk error that allows another attempt."""
    run = folder.run(taken.trial.number)
    name, step = run.path.name, run.newest_step()
    failures = folder.attempts.failures(name, step)
    deaths = [failure for failure in failures if failure.end == "died"]
    if len(deaths) >= MAX_ATTEMPTS:
        message = f"{len(deaths)} workers in a row died at the same step: {reason_of(deaths)}"
        return "FAIL", None, f"failed: {message}"
    failed_before = [f for f in failures if f.end == "io error" and f.started >= since]
    attempt = _retry(lambda: folder.attempts.begin(name, step), say)
    try:
        with folder.attempts.ending(attempt):
            return _run(folder, taken, say)
    except (FullDiskError, Preempted, RunLockedError, TakenOver):
        raise
    except Exception as error:
        if not is_transient(error):
            raise
        number, message = len(failed_before) + 1, one_line(error)
        if number >= MAX_ATTEMPTS:
            failed = TrainingError(f"trial {taken.trial.number}: {message}; go on with --resume")
            raise failed from None
        say(f"trial {taken.trial.number}: {message} (attempt {number} of {MAX_ATTEMPTS})")
        return None


def _run(folder: TuningFolder, taken: Taken, say: Say) -> Outcome:
    """Train a trial and return its outcome."""
    run = folder.run(taken.trial.number)
    if run.status().get("state") == "stopped":  # killed before the outcome reached the study
        return "PRUNED", None, str(run.status()["message"])
    metric = folder.settings().metric
    config = trial_config(folder.base(), taken.values)

    def train_it() -> dict[str, Any]:
        watch = _watcher(taken, metric, config)
        return train(config, run.path, resume=True, quiet=True, on_epoch=watch)

    try:
        summary = train_it()
        value = find_value(taken.trial, run, metric, summary)
        if value is None:
            say(f"trial {taken.trial.number}: metrics.jsonl lacks the result, running it again")
            shutil.rmtree(run.path)
            summary = train_it()
            value = find_value(taken.trial, run, metric, summary)
    except Stopped as error:
        return "PRUNED", None, str(error)
    except (DataError, FullDiskError, Preempted, RunLockedError, TakenOver):
        raise
    except (SaccadeError, RuntimeError) as error:  # torch raises RuntimeError for mismatched shapes
        if is_transient(error):
            raise
        return "FAIL", None, f"failed: {' '.join(str(error).split())}"
    if value is None or not isfinite(value):
        return "FAIL", None, f"failed: {metric} is {value} after epoch {chosen_epoch(summary)}"
    return "COMPLETE", value, f"{metric} {value:.4f} in {summary['seconds']:.1f} s"


def find_value(
    trial: optuna.Trial, run: RunFolder, metric: str, summary: Mapping[str, Any]
) -> float | None:
    """Value of a finished trial, or None if it is lost.

    If the trial was killed, rows of its metrics may be missing. The value is then looked up in the
    study, which received each epoch's value, or in the summary, which has the accuracy.
    """
    epoch = chosen_epoch(summary)
    rows = {row["epoch"]: row[metric] for row in run.metrics("epoch")}
    if epoch in rows:
        return float(rows[epoch])
    reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    if epoch in reported:
        return float(reported[epoch])
    is_cached = metric == "val_accuracy" and summary["selected"] == "best"
    return float(summary["val_accuracy_best"]) if is_cached else None


def _watcher(taken: Taken, metric: str, config: Config) -> Callable[[Mapping[str, Any]], None]:
    """Epoch callback that reports the metric to the study and prunes the trial.

    Startup trials are never pruned. The pruner is still called for them, because Hyperband compares
    later trials with them.
    """
    trial, epochs = taken.trial, config.train.epochs
    can_end = trial.number >= config.tune.startup_trials
    reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def watch(row: Mapping[str, Any]) -> None:
        epoch, value = row["epoch"], row[metric]
        if epoch not in reported:
            trial.report(value, epoch)
        if epoch < epochs and trial.should_prune() and can_end:
            raise Stopped(f"pruned after epoch {epoch} of {epochs} at {metric} {value:.4f}")

    return watch


def _record(trial: optuna.Trial, state: str, value: float | None, words: str) -> None:
    from optuna.trial import TrialState

    trial.set_user_attr("outcome", words)
    trial.study.tell(trial, value, state=TrialState[state])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
