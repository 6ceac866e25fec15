"""Start, resume and finish a comparison; estimate its training time."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saccade.config import Config
from saccade.data import DatasetInfo, Splits, load_splits
from saccade.errors import ConfigError, Preempted
from saccade.study.comparison.fairness import check_models, check_run
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.measures import MEASURES, is_measured, measure, training_speed
from saccade.study.comparison.plan import Job, Plan
from saccade.study.comparison.progress import Watcher
from saccade.study.comparison.results import collect
from saccade.study.comparison.search import (
    check_settings,
    check_untested,
    choose_settings,
    describe_candidates,
    is_searching,
    search,
    unfinished,
    unit_of,
)
from saccade.study.comparison.work import work, write_initial_weights
from saccade.study.folder import UNCHECKED
from saccade.study.launchers import Launcher, Task, local, only_launcher
from saccade.study.tuning.space import check_space
from saccade.study.workers import raise_worker_error
from saccade.train.cost import warn_of_default_size
from saccade.train.distributed import connect
from saccade.train.progress import print_line
from saccade.train.run_data import batch_note, check_same_data, check_same_folder
from saccade.train.torch_flags import check_machine, set_up_machine, uses_cuda

__all__ = ["compare", "estimate", "failed_runs"]

MAX_ON_CPU = 4


def compare(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int | None = 1,
    launcher: Launcher = local,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train every attention of a plan with every seed, and compare the results.

    Args:
        plan: Plan from `make_plan`.
        out: Folder of the comparison; it must be new unless `resume` is set.
        jobs: Number of runs at a time. The local launcher spreads as many worker processes over
            the GPUs; with 1, it trains in this process; with None, it chooses a number for this
            machine. Slurm's launcher has no limit with None.
        launcher: Where the workers run.
        resume: Resume the comparison in `out`, or start it if there is none.
        quiet: Show no progress.

    Returns:
        The results, as in `results.json`; failed runs are listed in `left_out`.

    Raises:
        ConfigError: The plan, the folder or a run in it is invalid or unfair, or another process
            works on the folder.
        DataError: The data cannot be read.
        TrainingError: Worker processes died and runs are missing.
        Preempted: A signal asked to stop; call again with `resume` to continue.
    """
    splits = _check_here(plan, jobs, is_local=launcher is local)
    if not quiet and (note := batch_note(plan.base, splits)):
        print(f"saccade: {note}", file=sys.stderr, flush=True)  # noqa: T201
    folder = ComparisonFolder.start(out, plan, resume=resume)
    if not quiet and not folder.is_base_held():
        print_line(f"saccade: {str(out)!r}: {UNCHECKED}")
    with only_launcher(folder.path):
        if is_searching(folder):
            _search(folder, jobs, launcher, quiet=quiet)
            folder = ComparisonFolder.open(out)  # with the settings that were found
        elif folder.plan.trials is not None:
            check_settings(folder)
            check_untested(folder)
        _prepare(folder, folder.plan, splits.info)
        return _run(folder, jobs, launcher, quiet=quiet)


def _search(folder: ComparisonFolder, jobs: int | None, launcher: Launcher, *, quiet: bool) -> None:
    """Tune every attention, and choose its settings."""
    since, names = time.time(), unfinished(folder)
    say = (lambda line: None) if quiet else print_line
    own = folder.search(folder.plan.baseline)
    task = Task(
        folder.path,
        since,
        units=[unit_of(name) for name in names],
        jobs=_default_jobs(own.base(), len(names)) if jobs is None and launcher is local else jobs,
        here=lambda: search(folder, since=since, say=say),
    )
    try:
        codes = launcher(task) if names else []
    except Preempted as error:
        ended = len(folder.plan.attentions) - len(unfinished(folder))
        done = f"stopped with {ended} of {len(folder.plan.attentions)} searches done"
        hint = "go on with --resume" if launcher is local else error
        raise type(error)(f"{done}; {hint}") from None
    if missing := unfinished(folder):
        ended_with = f"the workers ended with exit codes {', '.join(map(str, codes))}"
        raise_worker_error(
            codes, f"{ended_with}; {len(missing)} searches are missing; go on with --resume"
        )
    choose_settings(folder)


def _prepare(folder: ComparisonFolder, plan: Plan, info: DatasetInfo) -> None:
    """Check the runs that have begun, and write the initial weights."""
    folder.reopen_damaged()
    for job in plan.jobs():
        if folder.run(job).exists():
            check_run(folder.run(job), plan, job)
            check_same_data(folder.run(job), info)
    started = [job for job in plan.jobs() if folder.run(job).exists()]
    if len(started) < len(plan.jobs()):
        for job in started[:1]:
            check_same_folder(folder.run(job), plan.base.data)
    folder.measures()  # raises for a damaged file before hours of training
    write_initial_weights(folder, info)


def _run(
    folder: ComparisonFolder, jobs: int | None, launcher: Launcher, *, quiet: bool
) -> dict[str, Any]:
    """Train the remaining runs, measure, and write the results."""
    since = time.time()
    try:
        with Watcher(folder, since=since, on_change=lambda: _write(folder), quiet=quiet):
            codes = launcher(_training(folder, since, jobs, is_local=launcher is local))
            if not is_measured(folder):
                codes += launcher(_measuring(folder, since))
    except Preempted as error:
        _write(folder)
        done = f"stopped with {len(folder.finished())} of {len(folder.plan.jobs())} runs done"
        hint = "go on with --resume" if launcher is local else error
        raise type(error)(f"{done}; {hint}") from None
    results = _write(folder)
    _check_all_ended(codes, folder, since, results["left_out"])
    return results


def _check_here(plan: Plan, jobs: int | None, *, is_local: bool) -> Splits:
    """Check that every run could start; return the data of the first run."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a comparison starts its own processes: use --jobs, not torchrun")
    first = plan.config(plan.jobs()[0])
    if is_local:
        check_machine(first)
        connect(first.train.device)
    splits = _load_checked(plan)
    warn_of_default_size(first, splits)
    return splits


def _load_checked(plan: Plan) -> Splits:
    """The data of the first run, after the models and the search spaces were checked with it."""
    splits = load_splits(plan.config(plan.jobs()[0]).data)
    check_models(plan, splits.info)
    for config in plan.searches.values():
        check_space(config, splits)
    return splits


def _default_jobs(config: Config, units: int) -> int:
    """Default number of workers: one per GPU, or one per CPU core but at most four.

    Small networks do not use all threads of a CPU.
    """
    if uses_cuda(config):
        return min(units, torch.cuda.device_count())
    return min(units, len(os.sched_getaffinity(0)), MAX_ON_CPU)


def _training(folder: ComparisonFolder, since: float, jobs: int | None, *, is_local: bool) -> Task:
    """The training of the remaining runs.

    The default number of workers does not shrink as runs finish, so that every run gets the same
    share of the CPU threads.
    """
    runs, waiting = folder.plan.jobs(), [job.name for job in folder.waiting(since)]
    if jobs is None and is_local:
        jobs = _default_jobs(folder.plan.config(runs[0]), len(runs)) if waiting else 1
    here = partial(work, folder, since=since)
    return Task(folder.path, since, units=waiting, jobs=jobs, here=here)


def _measuring(folder: ComparisonFolder, since: float) -> Task:
    """The measurements, which start after all runs have ended."""
    here = partial(measure, folder)
    return Task(folder.path, since, units=[MEASURES], jobs=1, here=here)


def _write(folder: ComparisonFolder) -> dict[str, Any]:
    return folder.write("results.json", collect(folder))


def _check_all_ended(
    codes: list[int], folder: ComparisonFolder, since: float, left_out: list[dict[str, str]]
) -> None:
    """Raise if the workers ended before all runs had ended, or because of an error."""
    ended = f"the workers ended with exit codes {', '.join(map(str, codes))}"
    if missing := folder.waiting(since):
        raise_worker_error(codes, f"{ended}; {len(missing)} runs are missing; go on with --resume")
    if any(code > 0 for code in codes) and left_out:
        raise_worker_error(codes, failed_runs(left_out))


def failed_runs(left_out: list[dict[str, str]]) -> str:
    """The message about runs that failed."""
    return f"{len(left_out)} run(s) failed; {left_out[0]['run']}: {left_out[0]['reason']}"


def estimate(plan: Plan) -> dict[str, Any]:
    """Count trials and runs, and measure a few training steps of each attention.

    Returns:
        JSON values. `seconds` is the training time if runs are made one at a time and no trial is
        pruned; None if some model does not fit in memory.
    """
    first = plan.config(plan.jobs()[0])
    check_machine(first)
    ranks = connect(first.train.device)
    splits = _load_checked(plan)
    runs = len(plan.seeds) * (plan.folds or 1)
    rows: list[dict[str, Any]] = []
    for name in plan.attentions:
        config = plan.config(Job(name, plan.seeds[0], None if plan.folds is None else 0))
        with set_up_machine(config):
            speed = training_speed(config, splits, ranks)
        tuned_runs = runs if plan.trials else 0
        one = config.train.epochs * len(splits.train) / speed if speed else None
        count = (plan.trials or 0) + runs + tuned_runs
        space = plan.searches.get(name)
        rows.append(
            {
                "attention": name,
                "trials": plan.trials or 0,
                "runs": runs,
                "tuned_runs": tuned_runs,
                "img_per_s": speed,
                "seconds_per_run": None if one is None else round(one, 2),
                "seconds": None if one is None else round(count * one, 1),
                "space": {k: describe_candidates(space, k) for k in space.search} if space else {},
            }
        )
    times = [row["seconds"] for row in rows]
    return {
        "trials": sum(row["trials"] for row in rows),
        "runs": sum(row["runs"] + row["tuned_runs"] for row in rows),
        "seconds": None if None in times else round(sum(times), 1),
        "attentions": rows,
    }
