"""The state of each run of a comparison, as a table: `saccade compare status`."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from saccade.runs import RunFolder
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job as Run
from saccade.study.slurm import Job, find_jobs, log_of, read_queue

__all__ = ["RunStatus", "describe_runs", "status_table"]

State = Literal["waiting", "queued", "running", "interrupted", "done", "failed"]

STYLES: dict[State, str] = {"running": "cyan", "done": "green", "failed": "red"}
RECENT_EPOCHS = 5
"""Number of epochs whose mean duration predicts the time left."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run.

    Attributes:
        run: Name of the run.
        state: `waiting` runs have no worker and no job yet; `interrupted` runs have lost theirs.
        epoch: Number of complete epochs.
        epochs: Total number of epochs.
        eta_s: Estimated seconds until the end of a running run's last epoch.
        accuracy: Test accuracy of a run that is done.
        reason: Why the run failed, stopped or is queued.
        job: Slurm's job.
        log: Output of the job.
    """

    run: str
    state: State
    epoch: int
    epochs: int
    eta_s: float | None = None
    accuracy: float | None = None
    reason: str = ""
    job: str = ""
    log: str = ""

    @property
    def progress(self) -> str:
        """The accuracy, or the epoch and the time left, in words."""
        if self.accuracy is not None:
            return f"{self.accuracy:.2%}"
        left = "" if self.eta_s is None else f", {_duration(self.eta_s)} left"
        return f"{self.epoch}/{self.epochs}{left}" if self.epoch or left else ""


def describe_runs(folder: ComparisonFolder) -> list[RunStatus]:
    """The state of each run, in the order of the plan."""
    jobs = find_jobs(folder.path)
    queue = (read_queue() or {}) if jobs else {}
    return [_describe(folder, run, jobs.get(run.name, ""), queue) for run in folder.plan.jobs()]


def _describe(
    folder: ComparisonFolder, run: Run, job_id: str, queue: Mapping[str, Job]
) -> RunStatus:
    files, job = folder.run(run), queue.get(job_id)
    status = files.status()
    state, reason = _state(folder, run, job)
    summary = folder.summary(run) if state == "done" else {}
    return RunStatus(
        run=run.name,
        state=state,
        epoch=int(status.get("epoch", 0)),
        epochs=folder.plan.base.train.epochs,
        eta_s=_time_left(files, folder.plan.base.train.epochs) if state == "running" else None,
        accuracy=summary.get("test_accuracy"),
        reason=reason,
        job=job_id,
        log=str(log_of(folder.path, job_id)) if job_id else "",
    )


def _state(folder: ComparisonFolder, run: Run, job: Job | None) -> tuple[State, str]:
    """State of a run, and the reason for it."""
    status = folder.run(run).status()
    written, message = status.get("state"), str(status.get("message") or "")
    if written == "finished":
        return ("done", "") if folder.summary(run) else ("failed", "its files are damaged")
    if job is not None and not job.has_ended:
        queued = job.state == "PENDING"
        return ("queued", job.reason.replace("None", "")) if queued else ("running", "")
    if written == "failed":
        return "failed", message
    lost = job.death() if job is not None and job.state != "COMPLETED" else ""
    if not status:
        return ("failed", lost) if lost else ("waiting", "")
    if written == "running" and not lost and _has_worker(folder, run):
        return "running", ""
    return "interrupted", lost or message or str(written)


def _has_worker(folder: ComparisonFolder, run: Run) -> bool:
    """True unless the last attempt ended, or its process on this machine is gone."""
    attempts = folder.attempts.of(run.short_name)
    if not attempts or attempts[-1].end != "under way":
        return False
    return attempts[-1].host != platform.node() or _is_alive(attempts[-1].pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _time_left(run: RunFolder, epochs: int) -> float | None:
    """Estimated seconds until the end of the last epoch; None before the first is complete."""
    rows = run.metrics("epoch")
    if not rows:
        return None
    mean = statistics.fmean(row["seconds"] for row in rows[-RECENT_EPOCHS:])
    since_last = time.time() - float(run.status().get("updated", time.time()))
    left = (epochs - int(rows[-1]["epoch"])) * mean
    return max(0.0, left - max(0.0, since_last))


def status_table(runs: Sequence[RunStatus]) -> Table:
    """A table with a row per run, and the reasons and logs of failed runs."""
    counts = {state: sum(run.state == state for run in runs) for state in _order(runs)}
    caption = ", ".join(f"{count} {state}" for state, count in counts.items())
    has_jobs, has_reasons = any(run.job for run in runs), any(run.reason for run in runs)
    table = Table("run", "state", "progress", box=box.SIMPLE, pad_edge=False, caption=caption)
    if has_jobs:
        table.add_column("job", no_wrap=True)
    if has_reasons:
        table.add_column("reason", overflow="fold")
    for run in runs:
        style = STYLES.get(run.state, "dim")
        cells = [escape(run.run), f"[{style}]{run.state}[/]", run.progress]
        cells += [run.job] if has_jobs else []
        log = f" ({run.log})" if run.log and run.state in ("failed", "interrupted") else ""
        cells += [escape(run.reason + log)] if has_reasons else []
        table.add_row(*cells)
    return table


def _order(runs: Sequence[RunStatus]) -> list[State]:
    order: list[State] = ["done", "running", "queued", "waiting", "interrupted", "failed"]
    return [state for state in order if any(run.state == state for run in runs)]


def _duration(seconds: float) -> str:
    """A duration with one unit, such as `4 min`."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
