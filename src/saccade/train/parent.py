"""End a process when its parent process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress

__all__ = ["end_with_parent", "signal_if_parent_ends"]

PR_SET_PDEATHSIG = 1
POLL_S = 1.0


def signal_if_parent_ends(number: signal.Signals) -> None:
    """Let the kernel send a signal to this process when its parent ends; only on Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def end_with_parent(parent: int, number: signal.Signals, *, grace_s: float = 0.0) -> None:
    """End this process when its parent ends for any reason.

    On Linux the kernel sends the signal at once, even to a process that hangs. A thread does so on
    other systems; it also kills the process if it still runs after `grace_s`.

    Args:
        parent: Id of the parent process, which may have ended already.
        number: The signal to send.
        grace_s: Seconds that the process may take to end after the signal.
    """
    signal_if_parent_ends(number)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_S)
        os.kill(os.getpid(), number)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
