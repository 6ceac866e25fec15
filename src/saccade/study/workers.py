"""Run several worker processes on one machine.

The parent process replaces workers that die while work remains and kills workers that hang. No
worker outlives the parent, however it ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

from saccade.data.bad_images import tell_once
from saccade.errors import ConfigError, DataError, Preempted, TrainingError
from saccade.runs import RunFolder
from saccade.study.attempts import WORKER_ID, Attempts, one_line
from saccade.train.progress import print_line
from saccade.train.signals import (
    LIMIT_S,
    Interrupted,
    StopRequest,
    end_with_parent,
    kill_if_hung,
    stat_fields,
    stop_signals,
)

__all__ = [
    "WORKER",
    "choose_gpu",
    "join_parent",
    "leave_if_asked",
    "leave_worker",
    "raise_worker_error",
    "run_workers",
    "tell_skipped",
]

WORKER = "SACCADE_WORKER"
"""Environment variable that holds a worker's index on this machine."""

_PARENT = "SACCADE_WORKER_PARENT"
_COMMAND = "SACCADE_WORKER_COMMAND"

POLL_S = 0.1
STOP_S = 120.0
"""Seconds that workers may take to save after a request to stop."""

REPORTED = {
    kind.exit_code for kind in (ConfigError, DataError, TrainingError, Preempted, Interrupted)
}
"""Exit codes of workers that printed an error. A replacement would fail in the same way."""


HANG_LIMIT = "SACCADE_HANG_LIMIT_S"
DEFAULT_HANG_LIMIT_S = 900.0
BUSY_SHARE = 5e-4
"""Minimum share of one CPU that counts as work. Idle monitoring threads use less than this."""


@dataclass
class _IdleWatch:
    """Tracks how long a process has used almost no CPU time.

    An endless loop uses CPU time and is not detected.
    """

    _used: float | None = None
    _since: float = field(default_factory=time.monotonic)

    def has_hung(self, pid: int, limit_s: float) -> bool:
        """True if a process and its children have been idle for more than `limit_s` seconds.

        Always False if the CPU time is unknown (no `/proc`) or the process is suspended (Ctrl-Z).
        """
        now, used = time.monotonic(), _cpu_seconds(pid)
        if used is None or self._used is None or used - self._used > BUSY_SHARE * limit_s:
            self._used, self._since = used, now
        return now - self._since > limit_s


def _cpu_seconds(pid: int) -> float | None:
    """CPU seconds of a process and its children, including children that have ended."""
    try:
        fields = stat_fields(f"{pid}/stat")
        if fields[0] in ("T", "t"):
            return None
        children = Path(f"/proc/{pid}/task/{pid}/children")
        pids = children.read_text().split() if children.exists() else []
        ticks = sum(int(number) for number in fields[11:15])
        for child in pids:
            try:
                ticks += sum(int(number) for number in stat_fields(f"{child}/stat")[11:13])
            except OSError:
                continue
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class _Worker:
    """A worker process and its index."""

    index: int
    id: str
    process: subprocess.Popen[bytes]
    idle: _IdleWatch = field(default_factory=_IdleWatch)
    killed_for: str = ""

    def kill(self, reason: str = "") -> None:
        """Kill the worker and its child processes."""
        self.killed_for = self.killed_for or reason
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def death(self) -> str:
        """Description of how the worker died."""
        code = self.process.returncode
        if self.killed_for:
            return self.killed_for
        if code == -signal.SIGKILL:
            return "its worker was killed (SIGKILL), possibly because memory ran out"
        if code < 0:
            return f"its worker was ended by {signal.Signals(-code).name}"
        return f"its worker ended with exit code {code}"


def _hang_limit_s() -> float:
    """Seconds that a worker may be idle before it is killed; set by the environment variable."""
    value = os.environ.get(HANG_LIMIT, "")
    try:
        limit = float(value) if value else DEFAULT_HANG_LIMIT_S
    except ValueError:
        limit = -1.0
    if limit <= 0:
        raise ConfigError(f"{HANG_LIMIT} must be a number of seconds above 0, got {value!r}")
    return limit


def run_workers(
    module: str,
    arguments: Sequence[str],
    jobs: int,
    *,
    attempts: Attempts,
    is_work_left: Callable[[], bool],
) -> list[int]:
    """Run `python -m module arguments` in `jobs` processes and wait for them.

    The CPU threads are divided among the workers. Each worker finds its index in the environment.
    A stop signal is passed on as SIGTERM, and the workers save and exit. Workers that take longer
    than `STOP_S` are killed. A second Ctrl-C kills them at once.

    Returns:
        The exit codes in the order in which the workers ended; negative ones are signals.

    Raises:
        Preempted: A signal asked to stop and all workers have stopped.
    """
    command, limit_s = [sys.executable, "-m", module, *arguments], _hang_limit_s()
    codes: list[int] = []
    with stop_signals() as stop:
        workers = [_start(command, index, jobs) for index in range(jobs)]
        try:
            while workers and not stop.signal:
                time.sleep(POLL_S)
                for worker in [*workers]:
                    if _has_ended(worker, limit_s):
                        workers.remove(worker)
                        codes.append(worker.process.returncode)
                        if _is_to_replace(worker, attempts, stop) and is_work_left():
                            workers.append(_start(command, worker.index, jobs))
            is_stopped = bool(stop.signal)
            if workers:
                _stop(workers)
        except KeyboardInterrupt:
            message = "killed the workers; saved checkpoints are intact, go on with --resume"
            raise Interrupted(message) from None
        finally:
            for worker in workers:
                worker.kill()
                worker.process.wait()
    if is_stopped:
        kind = Interrupted if stop.signal == signal.SIGINT else Preempted
        raise kind("all workers saved and stopped; go on with --resume")
    return codes


def _start(command: Sequence[str], index: int, jobs: int) -> _Worker:
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    own_id = f"{os.environ.get(WORKER_ID, '')}{uuid4().hex}"  # a job of Slurm has set the start
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            WORKER: str(index),
            WORKER_ID: own_id,
            _PARENT: str(os.getpid()),
            _COMMAND: json.dumps(sys.argv),
        },
        process_group=0,
    )
    return _Worker(index, own_id, process)


def _has_ended(worker: _Worker, limit_s: float) -> bool:
    """True if a worker has ended. Kills a worker that has been idle for `limit_s`."""
    if worker.process.poll() is not None:
        worker.kill()  # children that it left behind
        return True
    if worker.idle.has_hung(worker.process.pid, limit_s):
        worker.kill(f"its worker was idle for {limit_s:.0f} s and was killed")
        worker.idle = _IdleWatch()
    return False


def _is_to_replace(worker: _Worker, attempts: Attempts, stop: StopRequest) -> bool:
    """True if a worker that ended should be replaced. Prints which run it died on."""
    code = worker.process.returncode
    run = attempts.note_death(worker.id, worker.death())
    if stop.signal:
        return False
    if run is not None:
        print_line(f"{run}: {worker.death()}")
        return True
    return code != 0 and code not in REPORTED and bool(attempts.made_by(worker.id))


def _stop(workers: Sequence[_Worker]) -> None:
    """Ask workers to save and exit, and wait `STOP_S` for them."""
    for worker in workers:
        worker.process.terminate()
    until = time.monotonic() + STOP_S
    while any(worker.process.poll() is None for worker in workers):
        if time.monotonic() > until:
            print_line(f"killing workers that did not stop within {STOP_S:.0f} s")
            return
        time.sleep(POLL_S)


def raise_worker_error(codes: Sequence[int], message: str) -> NoReturn:
    """Raise a `TrainingError` with the exit code of the first worker that failed."""
    error = TrainingError(message)
    error.exit_code = next((code for code in codes if code > 0), error.exit_code)
    raise error


def tell_skipped(run: RunFolder) -> None:
    """Log the images that a finished run skipped, each image only once."""
    for skipped in run.summary().get("skipped_images", {}).values():
        for fault in skipped["faults"]:
            tell_once(fault)


def leave_if_asked(stop: StopRequest, between: str) -> None:
    """Raise if a signal asked to stop. `between` names the units of work for the message."""
    if stop.signal:
        kind = Interrupted if stop.signal == signal.SIGINT else Preempted
        raise kind(f"stopped between {between}; go on with --resume")


def join_parent() -> None:
    """Kill this worker when its parent process ends, or when it hangs because memory ran out.

    Also restores `sys.argv` of the parent, so that runs record the user's command.
    """
    sys.argv = json.loads(os.environ[_COMMAND])
    kill_if_hung(min(_hang_limit_s(), LIMIT_S))
    end_with_parent(int(os.environ[_PARENT]), signal.SIGKILL)


def leave_worker(work: Callable[[], int]) -> NoReturn:
    """Call `work` and end the process with the exit code that it returns.

    The interpreter is not finalized, because this can block forever after a panic in a compiled
    library or when memory has run out.
    """
    code = 1
    try:
        code = work()
    except BaseException as error:
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
        with suppress(BaseException):
            print_line(f"a worker failed: {one_line(error)}")
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def choose_gpu() -> None:
    """Assign a GPU to this worker, round robin. Workers share GPUs if there are too few."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ[WORKER]) % torch.cuda.device_count())
