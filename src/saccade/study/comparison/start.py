"""Starting, resuming and ending a comparison."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from saccade.data import DatasetInfo, load_splits
from saccade.errors import ConfigError, Preempted
from saccade.study.comparison.fairness import check_models, check_run
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.initial import write_initial_weights
from saccade.study.comparison.measures import measure
from saccade.study.comparison.plan import Plan
from saccade.study.comparison.progress import Watcher
from saccade.study.comparison.results import collect
from saccade.study.comparison.work import work
from saccade.study.workers import raise_worker_error, run_workers
from saccade.train.distributed import connect
from saccade.train.machine import check_machine, uses_cuda
from saccade.train.run_data import check_same_data
from saccade.train.stops import stop_signals

__all__ = ["compare"]

MOST_ON_CPU = 4
MEASURED_ELSEWHERE = (
    "another process is still measuring latency, memory and error; --resume shows them afterwards"
)


def compare(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int | None = 1,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train every attention of a plan with every seed, and compare them.

    Args:
        plan: From `make_plan`.
        out: The comparison's folder; it must be new unless `resume` is set.
        jobs: Processes that train at the same time, spread over the GPUs; one trains in this
            process, None is what suits the machine. The same call on another machine with the same
            folder adds to them.
        resume: Go on with what is there, start where nothing is.
        quiet: Show no progress.

    Returns:
        The results, as in `results.json`; runs that failed are in `left_out`.

    Raises:
        ConfigError: The plan, the folder, or a run in it, cannot be used or is unfair.
        DataError: The data cannot be read.
        TrainingError: Worker processes died and runs are missing.
        Preempted: A signal asked to stop; `resume` goes on.
    """
    info = _check_here(plan, jobs)
    folder = ComparisonFolder.start(out, plan, resume=resume)
    for job in plan.jobs():
        if folder.run(job).exists():
            check_run(folder.run(job), plan, job)
            check_same_data(folder.run(job), info)
    folder.measures()  # a damaged file is told of before hours of training, not after
    write_initial_weights(folder, info)
    since = time.time()
    try:
        with (
            stop_signals() as stop,
            Watcher(folder, since=since, on_change=lambda: _write(folder), quiet=quiet),
        ):
            codes = _work(folder, jobs, since)
            is_ours = measure(folder, stop)
    except Preempted as error:
        _write(folder)
        done = f"{len(folder.finished())} of {len(plan.jobs())} runs"
        raise type(error)(f"stopped with {done} done; go on with --resume") from None
    results = _write(folder, measured_elsewhere=not is_ours)
    _judge(codes, folder, since)
    return results


def _check_here(plan: Plan, jobs: int | None) -> DatasetInfo:
    """See that every run could start on this machine; the facts about its data."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs={jobs}: wants at least 1")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a comparison starts its own processes: use --jobs, not torchrun")
    first = plan.config(plan.jobs()[0])
    check_machine(first)
    connect(first.train.device)
    info = load_splits(first.data).info
    check_models(plan, info)
    return info


def _suitable_jobs(folder: ComparisonFolder, since: float) -> int:
    """One a GPU; one a core of a CPU, whose threads small networks do not fill, four at most.

    As many for the last run as for the first: each has the same share of a CPU's threads.
    """
    if not folder.waiting(since):
        return 1
    runs = folder.plan.jobs()
    if uses_cuda(folder.plan.config(runs[0])):
        return min(len(runs), torch.cuda.device_count())
    return min(len(runs), len(os.sched_getaffinity(0)), MOST_ON_CPU)


def _work(folder: ComparisonFolder, jobs: int | None, since: float) -> list[int]:
    """Have the runs done; the exit codes of the processes that did them, if it was several."""
    jobs = _suitable_jobs(folder, since) if jobs is None else jobs
    if jobs == 1:
        work(folder, since=since)
        return []
    module = "saccade.study.comparison.worker"
    return run_workers(module, [str(folder.path), str(since)], jobs)


def _write(folder: ComparisonFolder, *, measured_elsewhere: bool = False) -> dict[str, Any]:
    results = collect(folder)
    missing = [row for row in results["rows"] if row["runs"] and row["latency_batch"] is None]
    if measured_elsewhere and missing:
        results["notes"].append(MEASURED_ELSEWHERE)
    folder.write("results.json", results)
    return results


def _judge(codes: list[int], folder: ComparisonFolder, since: float) -> None:
    """Raise where workers ended before all runs had."""
    missing = folder.waiting(since)
    if not missing:
        return
    told = f"the workers ended with exit codes {', '.join(map(str, codes))}"
    raise_worker_error(codes, f"{told}; {len(missing)} runs are missing: --resume")
