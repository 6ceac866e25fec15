"""The state of each run of a comparison, for `saccade compare status`."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from saccade.runs import RunFolder
from saccade.study.attempts import Attempt
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job as Run
from saccade.study.comparison.search import search_results, unit_of
from saccade.study.slurm_queue import Job, log_of, read_jobs

__all__ = ["RunStatus", "State", "describe_runs"]

State = Literal["waiting", "queued", "running", "interrupted", "done", "failed"]

SILENT = "Slurm does not answer, so this may be out of date"
"""Reason of runs that have not ended while the state of their jobs is unknown."""

KILLED = "its process is gone; --resume continues it"
"""Reason of runs whose process was killed before it could say why."""

RECENT_EPOCHS = 5
"""Number of epochs whose mean duration predicts the time left."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run, or of a search.

    Attributes:
        run: Name of the run, or of the search, such as `tuning/softmax`.
        state: `waiting` runs have no worker and no job yet; `interrupted` runs have lost theirs.
        epoch: Number of complete epochs; of a search, of ended trials.
        epochs: Total number of epochs or trials.
        eta_s: Estimated seconds until the end of a running run's last epoch.
        accuracy: Test accuracy of a run that is done.
        reason: Why the run failed, stopped or is queued.
        job: Slurm's job.
        log: Output of the job.
        is_search: True for a search.
        trials: Number of ended trials of a search, by state.
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
    is_search: bool = False
    trials: Mapping[str, int] = field(default_factory=dict)

    @property
    def progress(self) -> str:
        """The accuracy, or the epoch and the time left, in words; the trials of a search."""
        if self.is_search:
            best = "" if self.accuracy is None else f", best {self.accuracy:.4g}"
            states = [f"{n} {state}" for state, n in self.trials.items() if state != "complete"]
            ended = f" ({', '.join(states)})" if states else ""
            return f"{self.epoch}/{self.epochs} trials{ended}{best}"
        if self.accuracy is not None:
            return f"{self.accuracy:.2%}"
        left = "" if self.eta_s is None else f", {_duration(self.eta_s)} left"
        return f"{self.epoch}/{self.epochs}{left}" if self.epoch or left else ""


def describe_runs(folder: ComparisonFolder) -> list[RunStatus]:
    """The state of each search and each run, in the order of the plan."""
    jobs = read_jobs(folder.path)
    searched = folder.plan.attentions if folder.plan.trials is not None else ()
    found = [_describe_search(folder, name, jobs.get(unit_of(name))) for name in searched]
    found += [_describe(folder, run, jobs.get(run.name)) for run in folder.plan.jobs()]
    return [_with_job(folder, status, jobs.get(status.run)) for status in found]


def _with_job(folder: ComparisonFolder, status: RunStatus, job: Job | None) -> RunStatus:
    """The status with the job and its log."""
    if job is None:
        return status
    is_unsure = job.state == "SILENT" and status.state in ("waiting", "running", "interrupted")
    reason = SILENT if is_unsure else status.reason
    return replace(status, job=job.id, log=str(log_of(folder.path, job.id)), reason=reason)


def _describe_search(folder: ComparisonFolder, attention: str, job: Job | None) -> RunStatus:
    results = search_results(folder, attention)
    states = [row["state"] for row in results.get("trials", ()) if row["state"] != "running"]
    best = results.get("best")
    state, reason = _state_of_search(folder, attention, results, job)
    return RunStatus(
        run=unit_of(attention),
        state=state,
        epoch=len(states),
        epochs=folder.plan.trials or 0,
        accuracy=best["value"] if best else None,
        reason=reason,
        is_search=True,
        trials={state: states.count(state) for state in dict.fromkeys(states)},
    )


def _state_of_search(
    folder: ComparisonFolder, attention: str, results: Mapping[str, Any], job: Job | None
) -> tuple[State, str]:
    """State of a search, and the reason for it."""
    if results.get("complete"):
        return ("done", "") if results["best"] else ("failed", "all trials failed")
    attempts = folder.attempts.of(unit_of(attention).replace("/", "-"))
    if found := _state_of_job(job):
        return found
    if not attempts:
        return "waiting", ""
    return ("running", "") if _has_worker(attempts, job) else ("interrupted", attempts[-1].reason)


def _state_of_job(job: Job | None) -> tuple[State, str] | None:
    """State of a run whose job is queued or runs; None if it has no such job."""
    if job is None or job.has_ended or job.state == "SILENT":
        return None
    return ("queued", job.reason.replace("None", "")) if job.state == "PENDING" else ("running", "")


def _describe(folder: ComparisonFolder, run: Run, job: Job | None) -> RunStatus:
    files, epochs = folder.run(run), folder.plan.base.train.epochs
    state, reason = _state(folder, run, job)
    return RunStatus(
        run=run.name,
        state=state,
        epoch=int(files.status().get("epoch", 0)),
        epochs=epochs,
        eta_s=_time_left(files, epochs) if state == "running" else None,
        accuracy=folder.summary(run).get("test_accuracy") if state == "done" else None,
        reason=reason,
    )


def _state(folder: ComparisonFolder, run: Run, job: Job | None) -> tuple[State, str]:
    """State of a run, and the reason for it."""
    status = folder.run(run).status()
    written, message = status.get("state"), str(status.get("message") or "")
    if written == "finished":
        return ("done", "") if folder.summary(run) else ("failed", "its files are damaged")
    if found := _state_of_job(job):
        return found
    if written == "failed":
        return "failed", message
    is_lost = job is not None and job.state not in ("COMPLETED", "SILENT", "UNKNOWN")
    lost = job.death() if job is not None and is_lost else ""
    if not status:
        return ("failed", lost) if lost else ("waiting", "")
    if written == "running" and not lost and _has_worker(folder.attempts.of(run.short_name), job):
        return "running", ""
    return "interrupted", lost or message or (KILLED if written == "running" else str(written))


def _has_worker(attempts: Sequence[Attempt], job: Job | None) -> bool:
    """True unless the last attempt ended, or the job or the process that made it is gone."""
    if not attempts or attempts[-1].end != "under way":
        return False
    last = attempts[-1]
    if job is not None and job.has_ended and last.worker.startswith(job.worker):
        return False
    return last.host != platform.node() or _is_alive(last.pid)


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


def _duration(seconds: float) -> str:
    """A duration with one unit, such as `4 min`."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
