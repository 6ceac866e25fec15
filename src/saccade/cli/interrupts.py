"""Signals that end a command with one line and an exit code that a shell or Slurm can use.

They are Ctrl-C, SIGTERM, SIGHUP and SIGUSR1. The handler raises KeyboardInterrupt in the main
thread. That exception can get lost in three ways:

- Modules that are being imported may catch it and treat a dependency as missing. The exception is
  therefore delayed until the import ends. A second Ctrl-C in that time ends the process.
- Python drops an exception raised in a finalizer or a weak-reference callback, which matplotlib
  uses often. It is raised again.
- Compiled code may turn it into another error or into success. Any such result after a signal
  counts as the signal.

Python runs signal handlers between two bytecode operations of the main thread, so none runs while
an operation hangs. A second thread therefore reads the signal numbers from a pipe. It ends the
process `PATIENCE_S` after a second Ctrl-C, or at a third.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from saccade.errors import Preempted, SaccadeError
from saccade.train.signals import handled

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["Halted", "catch_interrupts", "halting"]

AGAIN_S = 0.02
PATIENCE_S = 10.0
REMINDER = signal.SIGALRM
"""Signal for the retry. It differs from the user's signals, so it never counts as a second one."""


class Halted(SaccadeError):  # noqa: N818 - it names an event, not a fault
    """A command was ended by a signal that it did not handle itself."""

    def __init__(self, number: int = signal.SIGINT, *, resumable: bool = False) -> None:
        self.exit_code = 128 + number
        if number == signal.SIGINT:
            super().__init__("interrupted")
            return
        message = f"stopped by {signal.Signals(number).name}"
        super().__init__(f"{message}; go on with --resume" if resumable else message)
        if resumable:
            self.exit_code = Preempted.exit_code


@contextmanager
def catch_interrupts(
    numbers: Sequence[signal.Signals], *, resumable: bool = False
) -> Iterator[None]:
    """Raise `Halted` if one of these signals arrives during the block, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts()
    before = {number: signal.signal(number, interrupts) for number in handled(numbers)}
    before[REMINDER] = signal.signal(REMINDER, interrupts.again)
    sys.unraisablehook = interrupts.raise_again
    try:
        with interrupts.as_halted(resumable=resumable), _listening():
            yield
    finally:
        sys.unraisablehook = interrupts.report_dropped
        interrupts.forget()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def halting(*, resumable: bool) -> Iterator[None]:
    """Turn KeyboardInterrupt into `Halted`. Typer would exit on it without a message."""
    try:
        yield
    except KeyboardInterrupt as end:
        raise Halted(*end.args, resumable=resumable) from None


@contextmanager
def _listening() -> Iterator[None]:
    """End the process if a second Ctrl-C has no effect, or at a third."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    is_over = threading.Event()

    def listen() -> None:  # starts no thread: without memory, none may start
        count, deadline = 0, math.inf
        while True:
            with suppress(MemoryError):
                left = max(0.0, deadline - time.monotonic())
                if not select.select([read_end], [], [], left if left < math.inf else None)[0]:
                    end()
                    deadline = math.inf
                    continue
                number = os.read(read_end, 1)[0]
                if not number:
                    return
                count += number == signal.SIGINT
                if count == 2:
                    deadline = time.monotonic() + PATIENCE_S
                elif count > 2:
                    end()

    def end() -> None:
        if not is_over.is_set():
            os._exit(128 + signal.SIGINT)

    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        signal.set_wakeup_fd(before)
        os.write(write_end, b"\0")  # a close is no end of file: forked processes have it open too
        thread.join()
        os.close(write_end)
        os.close(read_end)


class _Interrupts:
    """A signal handler that stores the signal and raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal = 0
        self._reminder: threading.Timer | None = None
        self.report_dropped = sys.unraisablehook

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not _is_importing(frame):
            raise KeyboardInterrupt(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._remind()

    def again(self, number: int, frame: FrameType | None) -> None:
        """Send a delayed signal to its present handler, or delay it again during an import."""
        if _is_importing(frame):
            self._remind()
            return
        if self.signal == signal.SIGINT and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, self)
        signal.raise_signal(self.signal)

    def raise_again(self, dropped: UnraisableHookArgs) -> None:
        """Send the signal again if Python dropped its KeyboardInterrupt; report other errors."""
        if self.signal and issubclass(dropped.exc_type, KeyboardInterrupt):
            self._remind()
        else:
            self.report_dropped(dropped)

    def _remind(self) -> None:
        self.forget()
        main = threading.main_thread().ident
        self._reminder = threading.Timer(AGAIN_S, signal.pthread_kill, [main, REMINDER])
        self._reminder.daemon = True
        self._reminder.start()

    def forget(self) -> None:
        """Cancel a pending retry."""
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder.join()

    @contextmanager
    def as_halted(self, *, resumable: bool) -> Iterator[None]:
        """After a signal, raise `Halted` in place of success and of errors from other libraries.

        A command that handled Ctrl-C itself keeps its own non-zero exit code.
        """
        try:
            yield
        except SaccadeError:
            raise
        except (Exception, SystemExit) as end:
            is_handled = getattr(end, "code", 0) and self.signal == signal.SIGINT
            if self.signal and not is_handled:
                raise Halted(self.signal, resumable=resumable) from None
            raise


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None
