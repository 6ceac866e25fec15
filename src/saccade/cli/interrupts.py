"""Ctrl-C and SIGTERM for every command: one line, and an exit code that a shell or Slurm can use.

A signal becomes a KeyboardInterrupt, which can get lost. Modules that are being loaded take it for
something missing and go on without: it waits until they are, and a second Ctrl-C meanwhile is the
system's, which ends the process. Python drops one that is raised inside a finaliser or the callback
of a weak reference, of which matplotlib is full: it is raised again. Compiled code turns one into
an error of its own, or into success: whatever a command ends with after a signal is the signal's
doing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from saccade.errors import Preempted, SaccadeError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["Halted", "catch_interrupts", "halting"]

AGAIN_S = 0.02
REMINDER = signal.SIGALRM
"""Not the signal itself, so that one sent again is never taken for a second one of the user's."""


class Halted(SaccadeError):  # noqa: N818 - it names an event, not a fault
    """A command that a signal ended, where the command itself did not see to it.

    Args:
        number: The signal.
        resumable: Whether the command has a --resume to go on with.
    """

    def __init__(self, number: int = signal.SIGINT, *, resumable: bool = False) -> None:
        self.exit_code = 128 + number
        if number != signal.SIGTERM:
            super().__init__("interrupted")
        elif not resumable:
            super().__init__("stopped by SIGTERM")
        else:
            super().__init__("stopped by SIGTERM; go on with --resume")
            self.exit_code = Preempted.exit_code


@contextmanager
def catch_interrupts(
    numbers: Sequence[signal.Signals], *, resumable: bool = False
) -> Iterator[None]:
    """Have these signals end a block as `Halted`, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts()
    before = {number: signal.signal(number, interrupts) for number in numbers}
    before[REMINDER] = signal.signal(REMINDER, interrupts.again)
    sys.unraisablehook = interrupts.raise_again
    try:
        with interrupts.told(resumable=resumable):
            yield
    finally:
        sys.unraisablehook = interrupts.report_dropped
        interrupts.forget()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def halting(*, resumable: bool) -> Iterator[None]:
    """Turn KeyboardInterrupt into `Halted` before typer sees it, which would end without a word."""
    try:
        yield
    except KeyboardInterrupt as end:
        raise Halted(*end.args, resumable=resumable) from None


class _Interrupts:
    """A handler of signals that raises KeyboardInterrupt and remembers which one it was."""

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
        """Give a signal that had to wait to whoever handles it by now."""
        if _is_importing(frame):
            self._remind()
            return
        if self.signal == signal.SIGINT and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, self)
        signal.raise_signal(self.signal)

    def raise_again(self, dropped: UnraisableHookArgs) -> None:
        """Take what Python could not raise, and send an interrupt once more."""
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
        """Have no earlier reminder come: after the end nobody waits for it."""
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder.join()

    @contextmanager
    def told(self, *, resumable: bool) -> Iterator[None]:
        """Take success, and any error but our own, for an interrupt if there was one.

        A command that saw to its end exits with the code of Ctrl-C: that of SIGTERM is another.
        """
        try:
            yield
        except SaccadeError:
            raise
        except (Exception, SystemExit) as end:
            seen_to = getattr(end, "code", 0) and self.signal == signal.SIGINT
            if self.signal and not seen_to:
                raise Halted(self.signal, resumable=resumable) from None
            raise


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is not None
