"""Launchers: where the workers of a study run.

A launcher gets a `Task`, places its workers, waits for them, and returns their exit codes. `local`
uses processes of this machine. `saccade.study.slurm.SlurmLauncher` uses jobs of Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from saccade.errors import ConfigError, RunLockedError, UnknownNameError, writing_error
from saccade.io import locked
from saccade.study.attempts import Attempts
from saccade.study.workers import run_workers

__all__ = [
    "LAUNCHERS",
    "Launcher",
    "Task",
    "choose_launcher",
    "local",
    "only_launcher",
    "parse_options",
]

LAUNCHERS = ("local", "slurm")

DECIDED = {
    "array", "chdir", "error", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "wrap",
}  # fmt: skip
"""Options of `sbatch` that saccade sets itself. A job is one process on one node."""


@dataclass(frozen=True)
class Task:
    """Work on a study that a launcher places.

    Attributes:
        module: Module of a worker, run as `python -m MODULE FOLDER SINCE [UNIT]`. Without a unit, a
            worker takes any unit that is free.
        folder: Folder of the study, with a folder `attempts`.
        since: Failures before this time are tried again.
        units: Parts of the work that can run at the same time, each as a job.
        jobs: Maximum number of units at a time; None for no limit.
        here: Does all the work in this process.
    """

    module: str
    folder: Path
    since: float
    units: Sequence[str]
    jobs: int | None
    here: Callable[[], object]

    @property
    def attempts(self) -> Attempts:
        """The attempts of the study."""
        return Attempts(self.folder / "attempts")


Launcher = Callable[[Task], list[int]]
"""Places a task, waits until it has ended, and returns the exit codes of its workers.

Raises `Preempted` if a signal asked to stop.
"""


def local(task: Task) -> list[int]:
    """Do the work in this process, or in `task.jobs` processes of this machine.

    Raises:
        ConfigError: Slurm still has jobs of this study.
    """
    if (task.folder / "slurm").exists():
        from saccade.study.slurm_queue import check_no_jobs

        check_no_jobs(task.folder)
    if task.jobs == 1:
        task.here()
        return []
    return run_workers(
        task.module,
        [str(task.folder), str(task.since)],
        task.jobs or len(task.units),
        attempts=task.attempts,
        is_work_left=lambda: True,  # a worker that finds no work exits
    )


def choose_launcher(name: str, options: Sequence[str] = ()) -> Launcher:
    """The launcher of the command line.

    Args:
        name: One of `LAUNCHERS`.
        options: Options of Slurm's `sbatch`, as `partition=gpu,time=02:00:00`.

    Raises:
        ConfigError: The launcher or an option is unknown, or submitit or Slurm is not installed.
    """
    if name not in LAUNCHERS:
        raise UnknownNameError("launcher", name, LAUNCHERS)
    if name == "local":
        if options:
            raise ConfigError("--slurm needs --launcher slurm")
        return local
    if find_spec("submitit") is None:
        raise ConfigError("--launcher slurm needs submitit: pip install 'saccade[cluster]'")
    if which("sbatch") is None:
        raise ConfigError("--launcher slurm needs Slurm: there is no sbatch here")
    from saccade.study.slurm import SlurmLauncher

    return SlurmLauncher(parse_options(options))


def parse_options(texts: Sequence[str]) -> dict[str, str | bool]:
    """Options of `sbatch` by name, from texts such as `partition=gpu,nodelist=n[1,2],exclusive`.

    A part that contains no `=` and follows a value with an open bracket belongs to that value.

    Raises:
        ConfigError: An option has no name, or is set by saccade.
    """
    options: dict[str, str | bool] = {}
    for text in texts:
        parts: list[str] = []
        for part in text.split(","):
            if parts and parts[-1].count("[") > parts[-1].count("]"):
                parts[-1] += f",{part}"
            else:
                parts.append(part)
        for part in parts:
            name, has_value, value = part.strip().partition("=")
            name = name.strip().lstrip("-").replace("_", "-")
            if not name:
                raise ConfigError(
                    f"--slurm must be options of sbatch, such as partition=gpu,time=02:00:00, "
                    f"got {text!r}"
                )
            if name in DECIDED:
                raise ConfigError(
                    f"--slurm: {name} is set by saccade: a job is one process on one node, and "
                    "--jobs limits how many run at a time"
                )
            options[name] = value.strip() if has_value else True
    return options


@contextmanager
def only_launcher(folder: Path) -> Iterator[None]:
    """Keep other launchers out of a study during the block.

    Raises:
        RunLockedError: Another process launches or finishes the work of this study.
        ConfigError: The folder cannot be written to, or its file system has no locks.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder / ".launcher.lock"))
        except BlockingIOError:
            raise RunLockedError(
                f"{str(folder)!r}: another process works on this study; wait until it has ended"
            ) from None
        except OSError as error:
            message = f"cannot lock the study in {str(folder)!r}"
            raise writing_error(message, error, ConfigError) from None
        yield
