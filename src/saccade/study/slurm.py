"""Run the units of a study as jobs of Slurm, submitted through submitit.

A job is a small `saccade --jobs 1`: it starts one worker and replaces it if it dies or hangs. On
SIGUSR1, which Slurm sends before the time limit, the worker saves and the job queues itself again.
On SIGTERM, which Slurm sends before it preempts, requeues or cancels a job, the worker saves and
Slurm decides what follows. The launcher queues a job that was lost again. The jobs do not need the
launcher: it only watches, so it can be stopped, and another one can join.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from saccade.errors import ConfigError, Preempted, TrainingError
from saccade.io import make_folder, write_json
from saccade.study import slurm_queue
from saccade.study.attempts import MAX_ATTEMPTS, WORKER_ID, Attempts
from saccade.study.launchers import Task
from saccade.study.slurm_queue import (
    ALIVE,
    PATIENT,
    Job,
    find_jobs,
    how_to_cancel,
    living_jobs,
    log_of,
    read_queue,
    requeue,
)
from saccade.study.workers import REPORTED, leave_worker, run_workers
from saccade.train.progress import print_line
from saccade.train.signals import STOP_SIGNALS, Interrupted, stop_signals

__all__ = ["SlurmLauncher"]

SIGNAL_DELAY_S = 120
"""Seconds before the time limit at which Slurm asks a job to save."""

USUAL = {"None", "Priority", "Resources", "BeginTime", "JobArrayTaskLimit", "Cleaning"}
"""Reasons for which jobs wait until others have ended or a moment has come."""


@dataclass
class SlurmLauncher:
    """Places each unit of a task as a job of Slurm, and watches the jobs.

    Attributes:
        options: Options of `sbatch`, without their dashes.
    """

    options: Mapping[str, str | bool]
    _tries: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, int] = field(default_factory=dict)
    _told: str = ""

    def __call__(self, task: Task) -> list[int]:
        """Submit the units that have no job yet, and wait until all jobs have ended."""
        living = living_jobs(task.folder)
        jobs = {unit: living[unit].id for unit in task.units if unit in living}
        if jobs:
            print_line(f"joined {len(jobs)} job(s) in Slurm's queue")
        codes: list[int] = []
        with stop_signals() as stop:
            if missing := [unit for unit in task.units if unit not in jobs]:
                jobs |= self._submit(task, missing)
            with suppress(KeyboardInterrupt):  # a second Ctrl-C
                while jobs and not stop.signal:
                    stop.wait(slurm_queue.POLL_S)
                    if not stop.signal:
                        codes += self._look(task, jobs)
        if jobs:
            raise _left_running(stop.signal, jobs.values())
        return codes

    def _submit(self, task: Task, units: Sequence[str]) -> dict[str, str]:
        """Submit a job for each unit, as one array."""
        import submitit

        folder = task.folder / "slurm"
        make_folder(folder)
        try:
            executor = submitit.SlurmExecutor(folder=folder)
            executor.update_parameters(
                time=None,
                job_name="saccade",
                array_parallelism=task.jobs or len(units),
                stderr_to_stdout=True,
                additional_parameters={
                    "signal": f"USR1@{SIGNAL_DELAY_S}",
                    "requeue": True,
                    **self.options,
                },
            )
            work = [_Work(task.module, task.folder.resolve(), task.since, unit) for unit in units]
            with redirect_stderr(io.StringIO()), _uninterrupted():  # submitit prints what it raises
                submitted = executor.map_array(_Work.run, work)
                jobs = {unit: str(job.job_id) for unit, job in zip(units, submitted, strict=True)}
                write_json(folder / "jobs.json", {**find_jobs(task.folder), **jobs})
        except (RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise ConfigError(f"Slurm refused the jobs: {_first_line(error)}") from None
        for unit, id_ in jobs.items():
            self._note_try(task, unit, Job(id_, "PENDING"))
        main = submitted[0].job_id.partition("_")[0]
        print_line(f"submitted {len(units)} job(s) to Slurm as {main}; logs are in {str(folder)!r}")
        return jobs

    def _look(self, task: Task, jobs: dict[str, str]) -> list[int]:
        """Remove ended jobs from `jobs` and return their exit codes; queue lost ones again."""
        queue = read_queue()
        if queue is None:
            self._tell("Slurm does not answer")  # its controller may be restarting
            return []
        codes, forgotten = [], []
        is_alive = any(queue[id_].state in ALIVE for id_ in jobs.values() if id_ in queue)
        for unit, id_ in [*jobs.items()]:
            job = queue.get(id_) or _forgotten(task, id_)
            if not job.has_ended:
                continue
            task.attempts.note_death(job.worker, job.death())
            if self._is_lost(task, unit, job, is_alive=is_alive):
                print_line(f"{unit}: {job.death()}; queueing it again")
                if requeue(id_):  # in the same array, which keeps to its limit of jobs at a time
                    self._note_try(task, unit, job)
                else:
                    forgotten.append(unit)
                continue
            del jobs[unit]
            # A canceled job has no exit code of its own: 143 would say that this command was.
            codes.append(-signal.SIGTERM if job.state == "CANCELLED" else job.code)
            if job.state != "COMPLETED":
                print_line(f"{unit}: {job.death()}; its log is {log_of(task.folder, id_)}")
        if forgotten:
            jobs |= self._submit(task, forgotten)
        self._tell(_why_waiting([queue[id_] for id_ in jobs.values() if id_ in queue]))
        return codes

    def _note_try(self, task: Task, unit: str, job: Job) -> None:
        """Record that a job of a unit was queued, and the attempts that it had begun by then."""
        self._tries[unit] = self._tries.get(unit, 0) + 1
        self._begun[unit] = len(task.attempts.made_by(job.worker))

    def _is_lost(self, task: Task, unit: str, job: Job, *, is_alive: bool) -> bool:
        """True if a job that ended should be queued again.

        The attempts of the runs limit how often a job that began one is tried. Slurm also calls a
        killed job canceled. Only if no job is alive, the user has canceled them all.
        """
        if job.state == "COMPLETED" or (job.state == "FAILED" and job.code in REPORTED):
            return False
        if job.state == "CANCELLED" and not is_alive:
            return False
        may_have_begun = job.state not in ("CANCELLED", "UNKNOWN")
        begun = len(task.attempts.made_by(job.worker))
        has_begun = may_have_begun and begun > self._begun.get(unit, 0)
        return has_begun or self._tries.get(unit, 0) < MAX_ATTEMPTS

    def _tell(self, line: str) -> None:
        """Print why the launcher waits, once for each change."""
        if line and line != self._told:
            print_line(f"{line}; waiting")
        self._told = line


@dataclass(frozen=True)
class _Work:
    """What a job does: the worker of one unit."""

    module: str
    folder: Path
    since: float
    unit: str
    command: list[str] = field(default_factory=lambda: sys.argv)

    def run(self) -> None:
        """Run the worker, and end the process with its exit code."""
        sys.argv = self.command
        leave_worker(self._run)

    def _run(self) -> int:
        import submitit

        job = Job(submitit.JobEnvironment().job_id, "RUNNING")
        os.environ[WORKER_ID] = job.worker
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
            os.environ.setdefault("OMP_NUM_THREADS", cpus)
        attempts = Attempts(self.folder / "attempts")
        with stop_signals() as stop:
            try:
                codes = run_workers(
                    self.module,
                    [str(self.folder), str(self.since), self.unit],
                    1,
                    attempts=attempts,
                    is_work_left=lambda: True,
                )
            except Preempted as error:
                if stop.signal != signal.SIGUSR1:
                    return error.exit_code
                return _queue_again(job, attempts)
        return codes[-1] if codes[-1] >= 0 else 1


def _queue_again(job: Job, attempts: Attempts) -> int:
    """Queue the job again after its time limit, unless its last attempts made no progress."""
    last = attempts.made_by(job.worker)[-MAX_ATTEMPTS:]
    if len(last) == MAX_ATTEMPTS and len({(a.name, a.step) for a in last}) == 1:
        print_line(
            f"{last[0].name}: {MAX_ATTEMPTS} times the time limit came before a new checkpoint; "
            "give the job more time"
        )
        return TrainingError.exit_code
    print_line(f"saved before the time limit; queueing job {job.id} again")
    if requeue(job.id, tries=PATIENT):
        return Preempted.exit_code
    print_line(f"Slurm did not queue job {job.id} again; --resume goes on")
    return 1  # with which a launcher that still watches queues the job again


def _forgotten(task: Task, id_: str) -> Job:
    """A job that Slurm no longer knows; it is complete if its last attempt is."""
    job = Job(id_, "UNKNOWN")
    last = task.attempts.made_by(job.worker)[-1:]
    return replace(job, state="COMPLETED") if last and last[0].end == "finished" else job


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C from `sbatch`, which would forget jobs that Slurm has accepted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _why_waiting(jobs: Sequence[Job]) -> str:
    """Why jobs cannot start, unless they only wait for others; empty if all can."""
    waiting = [job for job in jobs if job.state == "PENDING" and job.reason not in USUAL]
    return f"{len(waiting)} job(s) cannot start: {waiting[0].reason}" if waiting else ""


def _left_running(number: int, jobs: Iterable[str]) -> Preempted:
    kind = Interrupted if number == signal.SIGINT else Preempted
    return kind(
        f"the jobs go on in Slurm: --resume --launcher slurm joins them, {how_to_cancel(jobs)}"
    )


def _first_line(error: BaseException) -> str:
    """The first line of an error, without the name of the program that printed it."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].removeprefix("sbatch: ").removeprefix("error: ").strip()
