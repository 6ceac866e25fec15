"""A worker: takes a trial, runs it, tells what came of it, and goes on until none is left.

Taking a trial is done under one claim, so that trials are numbered once and never too many. A trial
whose worker died is taken first, and goes on from its checkpoint. What a trial draws depends on the
seed, its number and the trials that ended before, not on which worker it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from saccade.config import Config
from saccade.errors import DataError, FullDiskError, Preempted, SaccadeError, Stopped
from saccade.study.claims import Claim
from saccade.study.tuning.folder import TuningFolder
from saccade.study.tuning.results import write_results
from saccade.study.tuning.space import draw, grid, trial_config
from saccade.study.workers import leave_if_asked
from saccade.train import train
from saccade.train.stops import stop_signals

if TYPE_CHECKING:
    import optuna

__all__ = ["work"]

MOST_DEATHS = 3
POLL_S = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Taken:
    """A trial that is ours to run."""

    trial: optuna.Trial
    claim: Claim
    values: dict[str, Any]


def work(folder: TuningFolder, say: Say) -> None:
    """Run trials until as many as are wanted have ended, here or at other workers.

    Args:
        folder: Of the search.
        say: Told what happens, a line at a time.

    Raises:
        DataError: The data cannot be loaded.
        Preempted: A signal asked to stop; the trial under way is saved and not ended.
    """
    waiting = False
    with stop_signals() as stop:
        while True:
            leave_if_asked(stop, "trials")
            taken, under_way = _take(folder)
            if taken is not None:
                waiting = False
                _run_and_record(folder, taken, say)
            elif not under_way:
                return
            else:
                if not waiting:
                    say(f"waiting for {under_way} trial(s) of other workers")
                waiting = True
                time.sleep(POLL_S)


def _take(folder: TuningFolder) -> tuple[Taken | None, int]:
    """The next trial to run, if there is one, and how many are under way elsewhere."""
    from optuna.trial import Trial, TrialState

    base = folder.base()
    with folder.claims.hold("study"):
        study = folder.load()
        trials = study.get_trials(deepcopy=False)
        running = [t for t in trials if t.state == TrialState.RUNNING]
        for frozen in running:
            if claim := _claim(folder, frozen.number):
                _prepare(study, base, frozen.number)
                trial = Trial(study, frozen._trial_id)
                return Taken(trial, claim, draw(trial, base.search)), len(running) - 1
        waiting = [t.number for t in trials if t.state == TrialState.WAITING]
        if not waiting and len(trials) >= folder.trials_wanted():
            return None, len(running)
        number = waiting[0] if waiting else len(trials)
        _prepare(study, base, number)
        if base.tune.sampler == "grid" and not waiting:
            study.enqueue_trial(grid(base)[number])
        trial = study.ask()
        claim = _claim(folder, trial.number)
        assert claim is not None, "trials are claimed by whoever holds the study"
        return Taken(trial, claim, draw(trial, base.search)), len(running)


def _claim(folder: TuningFolder, number: int) -> Claim | None:
    checkpoints = folder.run(number).checkpoints()
    progress = checkpoints[-1].step if checkpoints else 0
    return folder.claims.take(f"trial-{number:04d}", progress)


def _prepare(study: optuna.Study, base: Config, number: int) -> None:
    """Give the study the sampler and the pruner for a trial."""
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


def _run_and_record(folder: TuningFolder, taken: Taken, say: Say) -> None:
    number = taken.trial.number
    say(f"trial {number}: {', '.join(f'{k}={_short(v)}' for k, v in taken.values.items())}")
    try:
        outcome = _run(folder, taken)
        with folder.claims.hold("study"):
            if not taken.claim.is_ours:
                raise _TakenOver
            _tell(taken.trial, *outcome)
            best = write_results(folder, taken.trial.study)["best"]
    except _TakenOver:
        say(f"trial {number}: another worker has it now")
        return
    finally:
        taken.claim.give_back()
    so_far = f"; best so far {best['value']:.4f}, trial {best['number']}" if best else ""
    say(f"trial {number}: {outcome[2]}{so_far}")


def _run(folder: TuningFolder, taken: Taken) -> tuple[str, float | None, str]:
    """Train; return how the trial ended, its value, and that in words."""
    run = folder.run(taken.trial.number)
    if taken.claim.deaths >= MOST_DEATHS:
        times = f"{taken.claim.deaths} workers in a row died at the same place"
        return "FAIL", None, f"failed: {times}, out of memory perhaps"
    if run.status().get("state") == "stopped":  # and then killed, before it could be told
        return "PRUNED", None, str(run.status()["message"])
    metric = folder.settings().metric
    try:
        config = trial_config(folder.base(), taken.values)
        watch = _watcher(taken, metric, config)
        summary = train(config, run.path, resume=True, quiet=True, on_epoch=watch)
    except Stopped as error:
        return "PRUNED", None, str(error)
    except (DataError, FullDiskError, Preempted):
        raise
    except (SaccadeError, RuntimeError) as error:  # torch tells of shapes that do not fit with one
        return "FAIL", None, f"failed: {' '.join(str(error).split())}"
    epoch = summary["best_epoch"] if summary["selected"] == "best" else summary["epochs"]
    value = next(row[metric] for row in run.metrics("epoch") if row["epoch"] == epoch)
    if not isfinite(value):
        return "FAIL", None, f"failed: {metric} is {value} after epoch {epoch}"
    return "COMPLETE", value, f"{metric} {value:.4f} in {summary['seconds']:.1f} s"


def _watcher(taken: Taken, metric: str, config: Config) -> Callable[[Mapping[str, Any]], None]:
    """What an epoch's row is told to: it passes the metric on, and may end the trial.

    Hyperband is asked of the first trials too, since it holds the others against them.
    """
    trial, epochs = taken.trial, config.train.epochs
    can_end = trial.number >= config.tune.startup_trials
    reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def watch(row: Mapping[str, Any]) -> None:
        if not taken.claim.is_ours:
            raise _TakenOver
        epoch, value = row["epoch"], row[metric]
        if epoch not in reported:
            trial.report(value, epoch)
        if epoch < epochs and trial.should_prune() and can_end:
            raise Stopped(f"pruned after epoch {epoch} of {epochs} at {metric} {value:.4f}")

    return watch


def _tell(trial: optuna.Trial, state: str, value: float | None, words: str) -> None:
    from optuna.trial import TrialState

    trial.set_user_attr("outcome", words)
    trial.study.tell(trial, value, state=TrialState[state])


class _TakenOver(Exception):  # noqa: N818 - it names an event, not a fault
    """Another worker took our trial, thinking us dead; nothing of it is ours to write any more."""


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
