"""Daemons of the tests, which end with the tests, however these end.

    python daemons.py OWNER

This process runs each line of stdin, a JSON list of words, as a command, and answers with its exit
code and output. Daemons that the commands leave behind become its children (Linux's subreaper). It
kills all of its descendants when stdin is closed or the process OWNER is gone.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

COMMAND_S = 120
POLL_S = 0.5
PR_SET_CHILD_SUBREAPER = 36


class Daemons:
    """A process of `daemons.py`; use `running_daemons`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, *words: object) -> tuple[int, str]:
        """Run a command; its exit code and output. The daemons that it starts are kept."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([*map(str, words)]), file=self.process.stdin, flush=True)
        code, output = json.loads(self.process.stdout.readline())
        return code, output


@contextmanager
def running_daemons() -> Iterator[Daemons]:
    """Allow daemons to be started in a `with` block; they are killed at its end."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    with process:  # which closes stdin at the end, and waits
        yield Daemons(process)


def main(owner: int) -> None:
    """Serve the owner until it is gone."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        with suppress(BrokenPipeError):
            for words in _lines(owner):
                print(json.dumps(_run(words)), flush=True)
    finally:
        _kill_descendants()


def _lines(owner: int) -> Iterator[list[str]]:
    while os.getppid() == owner:
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            yield json.loads(line)


def _run(words: list[str]) -> tuple[int, Any]:
    """Run a command. Its output goes to a file: daemons would keep a pipe open."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=COMMAND_S
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            return 1, str(error)
        output.seek(0)
        return code, output.read()


def _kill_descendants() -> None:
    """Kill until nothing is left: a process may start another one before it dies."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(int(sys.argv[1]))
