"""The queue of Slurm, and which of its jobs belong to a study.

slurm/jobs.json                 the job of each unit
slurm/<job>_0_log.out           what the job printed
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from saccade.errors import ConfigError
from saccade.io import read_json_object

__all__ = [
    "ALIVE",
    "PATIENT",
    "POLL_S",
    "Job",
    "check_no_jobs",
    "find_jobs",
    "how_to_cancel",
    "living_jobs",
    "log_of",
    "read_jobs",
    "read_queue",
    "requeue",
]

POLL_S = 5.0
PATIENT = 12
"""Number of times that a command of Slurm is tried, `POLL_S` apart: for a minute."""
QUERY = "JobArrayID:64,State:24,exit_code:16,Reason:64"
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
}  # fmt: skip
ALIVE = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED"}


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it.

    Attributes:
        id: Id of the job, such as `12_3`.
        state: Slurm's name of the state; `UNKNOWN` if Slurm has forgotten the job, `SILENT` if it
            does not answer.
        code: Exit code; 0 while the job is queued or runs.
        reason: Why the job is queued, in Slurm's word.
    """

    id: str
    state: str
    code: int = 0
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """True if Slurm will not start or continue the job."""
        return self.state in ENDED or self.state == "UNKNOWN"

    @property
    def worker(self) -> str:
        """The start of the ids of its workers."""
        return f"slurm-{self.id}-"

    def death(self) -> str:
        """Description of how the job was lost."""
        if self.state == "UNKNOWN":
            return f"Slurm has forgotten job {self.id}"
        return f"Slurm's job {self.id} ended as {self.state} with exit code {self.code}"


def find_jobs(folder: Path) -> dict[str, str]:
    """The newest job of each unit of a study; empty if none was submitted."""
    path = _jobs_file(folder)
    return {unit: str(id_) for unit, id_ in read_json_object(path).items()} if path.exists() else {}


def _jobs_file(folder: Path) -> Path:
    return folder / "slurm" / "jobs.json"


def check_no_jobs(folder: Path) -> None:
    """Raise if Slurm still has jobs of a study, which another launcher must not do again."""
    if living := living_jobs(folder):
        raise ConfigError(
            f"--launcher must be slurm while jobs of this study are in Slurm's queue, got local; "
            f"{how_to_cancel(job.id for job in living.values())}"
        )


def living_jobs(folder: Path) -> dict[str, Job]:
    """The jobs of a study that have not ended, by unit; empty if none was ever submitted."""
    if not find_jobs(folder):
        return {}
    if which("squeue") is None:
        raise ConfigError(
            f"squeue is not installed here, so jobs of this study may still be in Slurm's queue; "
            f"go on where Slurm is, or delete {str(folder / 'slurm')!r} if none is left"
        )
    jobs = read_jobs(folder, tries=PATIENT)
    if any(job.state == "SILENT" for job in jobs.values()):
        raise ConfigError("Slurm does not answer: squeue failed for a minute")
    return {unit: job for unit, job in jobs.items() if not job.has_ended}


def read_jobs(folder: Path, tries: int = 1) -> dict[str, Job]:
    """The newest job of each unit of a study; in the state `SILENT` if Slurm does not answer."""
    ids = find_jobs(folder)
    queue = read_queue(_jobs_file(folder).stat().st_uid, tries) if ids else {}
    absent = "SILENT" if queue is None else "UNKNOWN"
    return {unit: (queue or {}).get(id_) or Job(id_, absent) for unit, id_ in ids.items()}


def log_of(folder: Path, job: str) -> Path:
    """The file with the output of a job."""
    return folder / "slurm" / f"{job}_0_log.out"


def read_queue(user: int | None = None, tries: int = 1) -> dict[str, Job] | None:
    """The jobs of a user, by default of this one, by id; None if Slurm does not answer."""
    words = ("--noheader", "--array", "--states=all", f"--Format={QUERY}")
    whose = "--me" if user in (None, os.geteuid()) else f"--user={user}"
    printed = _ask("squeue", whose, *words, tries=tries)
    if printed is None:
        return None
    jobs = [_parse_job(line) for line in printed.splitlines()]
    return {job.id: job for job in jobs}


def requeue(id_: str, tries: int = 1) -> bool:
    """Queue a job again, also one that has ended; False if Slurm refuses or has forgotten it."""
    return _ask("scontrol", "requeue", id_, tries=tries) is not None


def _ask(*command: str, tries: int) -> str | None:
    """What a command of Slurm prints; None if it fails. Ctrl-C in a terminal does not reach it."""
    for left in reversed(range(tries)):
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=True, process_group=0
            ).stdout
        except (OSError, subprocess.SubprocessError):
            time.sleep(POLL_S if left else 0)
    return None


def _parse_job(line: str) -> Job:
    id_, state, status, reason = line.split(maxsplit=3)
    code = os.waitstatus_to_exitcode(int(status))
    return Job(id_, state, code if code >= 0 else 128 - code, reason.strip())


def how_to_cancel(jobs: Iterable[str]) -> str:
    """The command that cancels jobs, for a message."""
    ids = sorted({job.partition("_")[0] for job in jobs}, key=int)
    return f"scancel {' '.join(ids)} cancels them"
