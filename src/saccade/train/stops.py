"""SIGTERM and Ctrl-C as a polite request: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from saccade.errors import Preempted

__all__ = ["Interrupted", "StopRequest", "stop_signals"]


class Interrupted(Preempted):
    """Ctrl-C: saved and resumable, as after a preemption, with the shell's exit code for it."""

    exit_code = 130


class StopRequest:
    """Which signal, if any, asked the run to stop."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C does not wait."""
        if number == signal.SIGINT and self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Catch SIGTERM and SIGINT for the length of a block, in the main thread.

    A block inside another shares its request: a signal that came before is not forgotten.
    """
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, StopRequest):
        yield outer
        return
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {n: signal.signal(n, request) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
