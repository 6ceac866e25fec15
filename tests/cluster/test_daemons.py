"""Daemons end with the tests that started them, also if these are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import ROOT
from tests.cluster.daemons import running_daemons
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are of Linux")

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        with open(sys.argv[1], "w") as file:
            print(os.getpid(), file=file, flush=True)
        time.sleep(3600)
"""

OWNER = """
import sys, time
from tests.cluster.daemons import running_daemons

with running_daemons() as daemons:
    code, _ = daemons.run(sys.executable, "-c", sys.argv[1], sys.argv[2])
    assert code == 0
    time.sleep(3600)
"""


def daemon_of(file: Path) -> psutil.Process | None:
    """The daemon that has written its id, if it is alive."""
    text = file.read_text() if file.exists() else ""
    alive = text.endswith("\n") and psutil.pid_exists(int(text))
    return psutil.Process(int(text)) if alive else None


def test_daemons_end_with_the_block(tmp_path: Path) -> None:
    with running_daemons() as daemons:
        assert daemons.run(sys.executable, "-c", DAEMON, tmp_path / "pid") == (0, "")
        wait_until(lambda: daemon_of(tmp_path / "pid"))
        assert daemons.run("sh", "-c", "echo no; exit 3") == (3, "no\n")
        assert daemons.run("nosuchprogram")[0] == 1
    assert daemon_of(tmp_path / "pid") is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_daemons_end_with_killed_tests(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", OWNER, DAEMON, str(tmp_path / "pid")]
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}) as owner:
        wait_until(lambda: daemon_of(tmp_path / "pid"), owner)
        daemon = daemon_of(tmp_path / "pid")
        assert daemon is not None
        owner.send_signal(number)
        owner.wait(PATIENCE_S)
    wait_until(lambda: not daemon.is_running())
