"""Start, resume and finish a comparison."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from saccade.data import Splits, load_splits
from saccade.errors import ConfigError, Preempted
from saccade.io import sealed
from saccade.study.comparison.fairness import check_models, check_run
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.initial import write_initial_weights
from saccade.study.comparison.measures import measure
from saccade.study.comparison.plan import Plan
from saccade.study.comparison.progress import Watcher
from saccade.study.comparison.results import collect
from saccade.study.comparison.work import work
from saccade.study.workers import raise_worker_error, run_workers
from saccade.train.cost import warn_of_default_size
from saccade.train.distributed import connect
from saccade.train.run_data import batch_note, check_same_data, check_same_folder
from saccade.train.signals import stop_signals
from saccade.train.torch_flags import check_machine, uses_cuda

__all__ = ["compare"]

MAX_ON_CPU = 4
MEASURED_ELSEWHERE = (
    "another process is still measuring latency, memory and error; use --resume to show them later"
)


def compare(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int | None = 1,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train every attention of a plan with every seed, and compare the results.

    Args:
        plan: Plan from `make_plan`.
        out: Folder of the comparison; it must be new unless `resume` is set.
        jobs: Number of worker processes, spread over the GPUs. With 1, runs are trained in this
            process; None chooses a number for this machine. To add workers on another machine,
            make the same call there with `resume` and the same folder.
        resume: Resume the comparison in `out`, or start it if there is none.
        quiet: Show no progress.

    Returns:
        The results, as in `results.json`; failed runs are listed in `left_out`.

    Raises:
        ConfigError: The plan, the folder or a run in it is invalid or unfair.
        DataError: The data cannot be read.
        TrainingError: Worker processes died and runs are missing.
        Preempted: A signal asked to stop; call again with `resume` to continue.
    """
    splits = _check_here(plan, jobs)
    info = splits.info
    if not quiet and (note := batch_note(plan.base, splits)):
        print(f"saccade: {note}", file=sys.stderr, flush=True)  # noqa: T201
    folder = ComparisonFolder.start(out, plan, resume=resume)
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
    since = time.time()
    try:
        with (
            stop_signals() as stop,
            Watcher(folder, since=since, on_change=lambda: _write(folder), quiet=quiet),
        ):
            codes = _work(folder, jobs, since)
            has_measured = measure(folder, stop)
    except Preempted as error:
        _write(folder)
        done = f"{len(folder.finished())} of {len(plan.jobs())} runs"
        raise type(error)(f"stopped with {done} done; go on with --resume") from None
    results = _write(folder, measured_elsewhere=not has_measured)
    _check_all_ended(codes, folder, since)
    return results


def _check_here(plan: Plan, jobs: int | None) -> Splits:
    """Check that every run could start on this machine; return the data of the first run."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a comparison starts its own processes: use --jobs, not torchrun")
    first = plan.config(plan.jobs()[0])
    check_machine(first)
    connect(first.train.device)
    splits = load_splits(first.data)
    check_models(plan, splits.info)
    warn_of_default_size(first, splits)
    return splits


def _suitable_jobs(folder: ComparisonFolder, since: float) -> int:
    """Default number of workers: one per GPU, or one per CPU core but at most four.

    Small networks do not use all threads of a CPU. The number does not shrink as runs finish, so
    that every run gets the same share of the CPU threads.
    """
    if not folder.waiting(since):
        return 1
    runs = folder.plan.jobs()
    if uses_cuda(folder.plan.config(runs[0])):
        return min(len(runs), torch.cuda.device_count())
    return min(len(runs), len(os.sched_getaffinity(0)), MAX_ON_CPU)


def _work(folder: ComparisonFolder, jobs: int | None, since: float) -> list[int]:
    """Train the remaining runs. Return the exit codes of the worker processes, if any."""
    jobs = _suitable_jobs(folder, since) if jobs is None else jobs
    if jobs == 1:
        work(folder, since=since)
        return []
    module = "saccade.study.comparison.worker"
    return run_workers(
        module,
        [str(folder.path), str(since)],
        jobs,
        attempts=folder.attempts,
        is_work_left=lambda: bool(folder.waiting(since)),
    )


def _write(folder: ComparisonFolder, *, measured_elsewhere: bool = False) -> dict[str, Any]:
    results = collect(folder)
    missing = [row for row in results["rows"] if row["runs"] and row["latency_batch"] is None]
    if measured_elsewhere and missing:
        results["notes"].append(MEASURED_ELSEWHERE)
    results = sealed(results)
    folder.write("results.json", results)
    return results


def _check_all_ended(codes: list[int], folder: ComparisonFolder, since: float) -> None:
    """Raise if the workers ended before all runs had ended."""
    missing = folder.waiting(since)
    if not missing:
        return
    ended = f"the workers ended with exit codes {', '.join(map(str, codes))}"
    raise_worker_error(codes, f"{ended}; {len(missing)} runs are missing; go on with --resume")
