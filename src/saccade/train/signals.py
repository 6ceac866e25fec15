"""How the process of a run is ended: by a signal, with its parent, or because it hangs.

SIGTERM, SIGINT (Ctrl-C), SIGHUP (a closed terminal) and SIGUSR1, which Slurm can send before the
time limit of a job, make a run finish its step, save and exit.

Where memory is limited (`ulimit -v`), any allocation can fail. Python then raises MemoryError, but
a compiled library may wait for its own lock, or repeat the allocation without end. No Python code
runs in the meantime, and so no signal handler. A small second process therefore watches.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from saccade.errors import Preempted

__all__ = [
    "LIMIT_S",
    "STOP_SIGNALS",
    "Interrupted",
    "StopRequest",
    "end_with_parent",
    "handled",
    "kill_if_hung",
    "stat_fields",
    "stop_signals",
]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1
PARENT_POLL_S = 1.0

LIMIT_S = 20.0
"""Seconds after which a process counts as hung."""

ASKED_LIMIT_S = 5.0
"""The same after a signal asked the process to stop."""

BEAT_S = POLL_S = 0.5
MAX_SYSTEM_SHARE = 0.1
"""Share of the limit that a process may spend in the system's code while no Python code can run.
Repeating a failed allocation is spent there; other compiled code seldom calls the system.
"""

MAX_IDLE_SHARE = 0.1
"""Maximum share of one CPU that a blocked process uses. A thread that waits for Python's own lock
looks at it every 5 ms."""

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


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


def _signal_if_parent_ends(number: signal.Signals) -> None:
    """Let the kernel send a signal to this process when its parent ends; only on Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def end_with_parent(parent: int, number: signal.Signals, *, grace_s: float = 0.0) -> None:
    """End this process when its parent ends for any reason.

    On Linux the kernel sends the signal at once, even to a process that hangs. A thread does so on
    other systems; it also kills the process if it still runs after `grace_s`.
    """
    _signal_if_parent_ends(number)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os.kill(os.getpid(), number)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def kill_if_hung(limit_s: float = LIMIT_S) -> None:
    """Start to watch this process if its memory is limited. Call it before any thread starts.

    The watching process ends with this one. It prints a line before it kills.
    """
    is_limited = any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in LIMITS)
    if not is_limited or not Path("/proc/self/task").is_dir():
        return
    os.environ["RUST_BACKTRACE"] = "0"  # without memory, printing one blocks for ever
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    watched = os.getpid()
    if not os.fork():
        try:
            os.close(write_end)
            _watch(watched, read_end, limit_s)
        finally:
            os._exit(0)
    os.close(read_end)
    threading.Thread(target=_beat, args=(write_end,), name="beat", daemon=True).start()


def _beat(write_end: int) -> None:
    """Tell the watching process that Python code runs here."""
    while True:
        try:
            os.write(write_end, b"\0")
            time.sleep(BEAT_S)
        except (MemoryError, BlockingIOError):
            continue
        except OSError:
            return  # the watching process has ended


def _watch(watched: int, read_end: int, limit_s: float) -> None:
    """Body of the watching process."""
    is_asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True

    for number in STOP_SIGNALS:  # a terminal sends them to both processes
        signal.signal(number, note)
    _signal_if_parent_ends(signal.SIGKILL)
    for stream in (0, 1):  # whoever reads from a pipe waits until the last process has closed it
        with suppress(OSError):
            os.close(stream)
    os.set_blocking(read_end, False)
    watch = _HangWatch(watched)
    while os.getppid() == watched:
        time.sleep(POLL_S)
        if watch.has_hung(min(limit_s, ASKED_LIMIT_S) if is_asked else limit_s, _beats(read_end)):
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            size = "" if limit == resource.RLIM_INFINITY else f" (ulimit -v: {limit // 1024} KiB)"
            line = f"saccade: killed a process that hung because memory ran out{size}\n"
            with suppress(OSError):
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
            with suppress(ProcessLookupError):
                os.kill(watched, signal.SIGKILL)
            return


def _beats(read_end: int) -> bool:
    """True if the watched process has run Python code since the last call."""
    try:
        return bool(os.read(read_end, 4096))
    except BlockingIOError:
        return False


@dataclass
class _HangWatch:
    """Finds out whether a process hangs. Call `has_hung` every `POLL_S` seconds.

    A process hangs if its main thread uses CPU time while no Python code can run, or if all of its
    threads wait for locks of each other.
    """

    pid: int
    _busy_from: tuple[float, float] | None = None
    _idle_from: float = 0.0
    _idle_polls: int = 0

    def has_hung(self, limit_s: float, has_beaten: bool) -> bool:
        """True if the process hangs for `limit_s` seconds, of CPU time if it computes."""
        try:
            threads = [int(entry.name) for entry in Path(f"/proc/{self.pid}/task").iterdir()]
            own, system = _cpu_seconds(f"{self.pid}/task/{self.pid}/stat")
            total, _ = _cpu_seconds(f"{self.pid}/stat")
            waits = {thread: _waits_for(self.pid, thread) for thread in threads}
        except (OSError, ValueError, IndexError):
            return False
        if has_beaten or self._busy_from is None:
            self._busy_from = own, system
        main = waits.pop(self.pid, "")
        is_waiting = "futex" in main or (not has_beaten and _is_harmless(main))
        is_idle = is_waiting and all(_is_harmless(place) for place in waits.values())
        if not is_idle or total - self._idle_from > MAX_IDLE_SHARE * limit_s:
            self._idle_from, self._idle_polls = total, 0
        else:
            self._idle_polls += 1
        busy, in_system = own - self._busy_from[0], system - self._busy_from[1]
        return max(busy, in_system / MAX_SYSTEM_SHARE, self._idle_polls * POLL_S) > limit_s


def _is_harmless(place: str) -> bool:
    """True if a thread that waits in this kernel function waits for a lock or for time to pass."""
    return "futex" in place or "nanosleep" in place


def _waits_for(pid: int, thread: int) -> str:
    """The kernel function in which a thread waits; `0` if it runs or the system does not tell."""
    return Path(f"/proc/{pid}/task/{thread}/wchan").read_text()


def stat_fields(stat: str) -> list[str]:
    """The fields of a file such as `/proc/<pid>/stat` after the name; the first is the state."""
    return Path(f"/proc/{stat}").read_text(errors="replace").rpartition(")")[2].split()


def _cpu_seconds(stat: str) -> tuple[float, float]:
    """CPU seconds of a process or thread, and those of them in the system's code."""
    fields = stat_fields(stat)
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK"), system / os.sysconf("SC_CLK_TCK")
