"""A parent and its workers without torch: one of the pieces of work ends the worker.

python -m tests.study.faulty_worker tool OUT FAULT      starts two workers with `run_workers`
python -m tests.study.faulty_worker OUT FAULT           is one of the workers
"""

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.io import locked
from saccade.study.attempts import MAX_ATTEMPTS, Attempts, reason_of
from saccade.study.workers import join_parent, leave_worker, run_workers
from saccade.train.signals import stop_signals

PIECES = ("good-1", "bad", "good-2", "good-3")


def strike(fault: str) -> None:
    """End or block this process."""
    if fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "SIGSEGV":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "exit":
        os._exit(0)
    elif fault == "hang":
        while True:
            time.sleep(1000)
    elif fault == "deaf":  # ignores all signals except SIGKILL
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        while True:
            sum(range(100_000))


def is_left(out: Path, piece: str) -> bool:
    return not any((out / f"{piece}-{end}").exists() for end in ("done", "failed"))


def work_on(out: Path, piece: str, attempts: Attempts, fault: str) -> None:
    if len(failures := attempts.failures(piece, 0)) >= MAX_ATTEMPTS:
        (out / f"{piece}-failed").write_text(reason_of(failures))
        return
    with attempts.ending(attempts.begin(piece, 0)):
        with (out / "pids").open("a") as file:
            file.write(f"{piece} {os.getpid()}\n")
        if piece == "bad":
            strike(fault)
    (out / f"{piece}-done").touch()


def work(out: Path, fault: str) -> int:
    """Body of a worker process."""
    join_parent()
    attempts = Attempts(out / "attempts")
    with stop_signals() as stop:
        while any(is_left(out, piece) for piece in PIECES):
            if stop.signal:
                return 75
            for piece in PIECES:
                with suppress(BlockingIOError), locked(out / f".{piece}.lock"):
                    if is_left(out, piece):
                        work_on(out, piece, attempts, fault)
            time.sleep(0.02)
    return 0


def main() -> None:
    if sys.argv[1] != "tool":
        out, fault = Path(sys.argv[1]), sys.argv[2]
        leave_worker(lambda: work(out, fault))
    out = Path(sys.argv[2])
    try:
        codes = run_workers(
            sys.argv[2:],
            2,
            attempts=Attempts(out / "attempts"),
            module="tests.study.faulty_worker",
            is_work_left=lambda: any(is_left(out, piece) for piece in PIECES),
        )
    except SaccadeError as error:
        print(f"tool: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(*codes)


if __name__ == "__main__":
    main()
