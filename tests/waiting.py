"""How tests wait for processes: far longer than they take, so that only one that hangs is lost."""

import subprocess
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

PATIENCE_S = 600

Process = BaseProcess | subprocess.Popen[str] | subprocess.Popen[bytes]


def is_alive(process: Process) -> bool:
    return process.is_alive() if isinstance(process, BaseProcess) else process.poll() is None


def wait_until(happened: Callable[[], object], *processes: Process) -> None:
    """Until something has happened, which these processes are to bring about."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert all(map(is_alive, processes))
        assert time.monotonic() < deadline
        time.sleep(0.005)
