"""Several workers on one machine, each a process of its own that would also run on another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from saccade.errors import Preempted, TrainingError
from saccade.train.stops import Interrupted, StopRequest, stop_signals

__all__ = [
    "WORKER",
    "choose_gpu",
    "join_parent",
    "leave_if_asked",
    "raise_worker_error",
    "run_workers",
]

WORKER = "SACCADE_WORKER"
"""Environment variable that holds a worker's index."""

_PARENT = "SACCADE_WORKER_PARENT"
_COMMAND = "SACCADE_WORKER_COMMAND"

POLL_S = 0.1


def run_workers(module: str, arguments: Sequence[str], jobs: int) -> list[int]:
    """Run `python -m module arguments` in `jobs` processes and wait for them.

    Each has its share of the CPU's threads, and its index in the environment. SIGTERM and Ctrl-C
    are passed on as SIGTERM; the workers save and leave.

    Returns:
        The exit codes; negative ones are signals.

    Raises:
        Preempted: A signal asked to stop, and all workers have.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    command = [sys.executable, "-m", module, *arguments]
    with stop_signals() as stop:
        workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={
                    "OMP_NUM_THREADS": str(threads),
                    **os.environ,
                    WORKER: str(index),
                    _PARENT: str(os.getpid()),
                    _COMMAND: json.dumps(sys.argv),
                },
                process_group=0,
            )
            for index in range(jobs)
        ]
        told = False
        while any(worker.poll() is None for worker in workers):
            if stop.signal and not told:
                told = True
                for worker in workers:
                    worker.terminate()
            time.sleep(POLL_S)
    if told:
        kind = Interrupted if stop.signal == signal.SIGINT else Preempted
        raise kind("all workers stopped and saved; go on with --resume")
    return [worker.returncode for worker in workers]


def raise_worker_error(codes: Sequence[int], message: str) -> NoReturn:
    """Raise a `TrainingError` with the exit code of the first worker that failed."""
    error = TrainingError(message)
    error.exit_code = next((code for code in codes if code > 0), error.exit_code)
    raise error


def leave_if_asked(stop: StopRequest, between: str) -> None:
    """Raise if a signal asked to stop, between two pieces of work, which are named."""
    if stop.signal:
        kind = Interrupted if stop.signal == signal.SIGINT else Preempted
        raise kind(f"stopped between {between}; go on with --resume")


def join_parent() -> None:
    """Tie this worker to the process that started it.

    When that is gone it is asked to stop, as by SIGTERM; and the command that its runs write down
    is the one that the user gave.
    """
    parent = int(os.environ[_PARENT])
    sys.argv = json.loads(os.environ[_COMMAND])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def choose_gpu() -> None:
    """Spread the workers over the GPUs in turn; several share one where there are fewer."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ[WORKER]) % torch.cuda.device_count())
