"""Signals that make a run finish its step, save and exit.

They are SIGTERM, SIGINT (Ctrl-C), SIGHUP (a closed terminal) and SIGUSR1, which Slurm can send
before the time limit of a job.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from saccade.errors import Preempted

__all__ = ["STOP_SIGNALS", "Interrupted", "StopRequest", "handled", "stop_signals"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Interrupted(Preempted):
    """Stopped by Ctrl-C: saved and resumable like `Preempted`, with the exit code 130."""

    exit_code = 130


class StopRequest:
    """The signal that asked the run to stop; 0 if there was none."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Store the signal; raise `KeyboardInterrupt` on the second Ctrl-C."""
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def wait(self, seconds: float) -> None:
        """Sleep until a signal asks to stop, at most for these seconds."""
        until = time.monotonic() + seconds
        while not self.signal and time.monotonic() < until:
            time.sleep(0.05)


def handled(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    """The signals that this process should handle.

    SIGHUP and SIGUSR1 stay ignored if the caller ignores them, as `nohup` does.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    return [n for n in numbers if n in always or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Handle `STOP_SIGNALS` within a block, in the main thread.

    A nested block shares the request of the outer one, so that earlier signals are kept.
    """
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, StopRequest):
        yield outer
        return
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {n: signal.signal(n, request) for n in handled(STOP_SIGNALS)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
