"""The state of each run of a comparison, for `saccade compare status`."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from saccade.runs import RunFolder
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job as Run
from saccade.study.comparison.search import search_results, unit_of
from saccade.study.slurm_queue import Job, find_jobs, log_of, read_queue

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
    jobs = find_jobs(folder.path)
    queue = read_queue() if jobs else {}
    searched = folder.plan.attentions if folder.plan.trials is not None else ()
    searches = [
        _describe_search(folder, name, jobs.get(unit_of(name), ""), queue) for name in searched
    ]
    runs = [_describe(folder, run, jobs.get(run.name, ""), queue) for run in folder.plan.jobs()]
    return [*searches, *runs]


def _describe_search(
    folder: ComparisonFolder, attention: str, job_id: str, queue: Mapping[str, Job] | None
) -> RunStatus:
    results, job = search_results(folder, attention), (queue or {}).get(job_id)
    states = [row["state"] for row in results.get("trials", ()) if row["state"] != "running"]
    best = results.get("best")
    state, reason = _state_of_search(folder, attention, results, job)
    if queue is None and job_id and state in ("waiting", "running", "interrupted"):
        reason = SILENT
    return RunStatus(
        run=unit_of(attention),
        state=state,
        epoch=len(states),
        epochs=folder.plan.trials or 0,
        accuracy=best["value"] if best else None,
        reason=reason,
        job=job_id,
        log=str(log_of(folder.path, job_id)) if job_id else "",
        is_search=True,
        trials={state: states.count(state) for state in dict.fromkeys(states)},
    )


def _state_of_search(
    folder: ComparisonFolder, attention: str, results: Mapping[str, Any], job: Job | None
) -> tuple[State, str]:
    """State of a search, and the reason for it."""
    if results.get("complete"):
        return ("done", "") if results["best"] else ("failed", "all trials failed")
    if job is not None and not job.has_ended:
        queued = job.state == "PENDING"
        return ("queued", job.reason.replace("None", "")) if queued else ("running", "")
    attempts = folder.attempts.of(unit_of(attention).replace("/", "-"))
    if not attempts:
        return "waiting", ""
    last = attempts[-1]
    if last.end == "under way" and (last.host != platform.node() or _is_alive(last.pid)):
        return "running", ""
    return "interrupted", last.reason


def _describe(
    folder: ComparisonFolder, run: Run, job_id: str, queue: Mapping[str, Job] | None
) -> RunStatus:
    files, job = folder.run(run), (queue or {}).get(job_id)
    status = files.status()
    state, reason = _state(folder, run, job)
    if queue is None and job_id and state in ("waiting", "running", "interrupted"):
        reason = SILENT
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
    return "interrupted", lost or message or (KILLED if written == "running" else str(written))


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


def _duration(seconds: float) -> str:
    """A duration with one unit, such as `4 min`."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
