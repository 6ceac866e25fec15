"""Detect hung processes: they use no CPU time.

An endless loop uses CPU time and is not detected.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from saccade.errors import ConfigError

__all__ = ["IdleWatch", "hang_limit_s"]

HANG_LIMIT = "SACCADE_HANG_LIMIT_S"
DEFAULT_S = 900.0
BUSY_SHARE = 5e-4
"""Minimum share of one CPU that counts as work. Idle monitoring threads use less than this."""


def hang_limit_s() -> float:
    """Seconds that a worker may be idle before it is killed; set by the environment variable."""
    value = os.environ.get(HANG_LIMIT, "")
    try:
        limit = float(value) if value else DEFAULT_S
    except ValueError:
        limit = -1.0
    if limit <= 0:
        raise ConfigError(f"{HANG_LIMIT} must be a number of seconds above 0, got {value!r}")
    return limit


@dataclass
class IdleWatch:
    """Tracks how long a process has used almost no CPU time."""

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
        fields = _stat(pid)
        if fields[0] in ("T", "t"):
            return None
        children = Path(f"/proc/{pid}/task/{pid}/children")
        pids = children.read_text().split() if children.exists() else []
        ticks = sum(int(number) for number in fields[11:15])
        for child in pids:
            try:
                ticks += sum(int(number) for number in _stat(int(child))[11:13])
            except OSError:
                continue
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/<pid>/stat` after the process name; the first one is the state."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()
