"""Workers that die or hang in real processes: the parent ends and reports the reason."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.study.faulty_worker import PIECES
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
HANG_S = 2

Tool = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    """Start the parent with two workers; remaining processes are killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(fault: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.study.faulty_worker", "tool", str(tmp_path), fault]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    for pid in workers_of(tmp_path):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def workers_of(out: Path, piece: str = "") -> list[int]:
    """Process ids of the workers that began a piece of work."""
    lines = (out / "pids").read_text().splitlines() if (out / "pids").exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(piece)]


def are_gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("SIGKILL", "its worker was killed (SIGKILL), possibly because memory ran out"),
        ("SIGSEGV", "its worker was ended by SIGSEGV"),
        ("exit", "its worker ended with exit code 0"),
        ("hang", f"its worker was idle for {HANG_S} s and was killed"),
    ],
)
def test_run_that_kills_its_workers_fails_and_the_others_finish(
    tool: Tool, tmp_path: Path, fault: str, reason: str
) -> None:
    process = tool(fault, SACCADE_HANG_LIMIT_S=str(HANG_S))
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err.count(f"bad: {reason}") == 3
    assert len(workers_of(tmp_path, "bad")) == 3
    assert (tmp_path / "bad-failed").read_text() == reason
    assert all((tmp_path / f"{piece}-done").exists() for piece in PIECES if piece != "bad")
    assert are_gone(workers_of(tmp_path))


def start_and_wait(tool: Tool, out: Path, fault: str) -> subprocess.Popen[str]:
    process = tool(fault)
    wait_until(lambda: workers_of(out, "bad"), process)
    time.sleep(0.5)
    return process


def test_second_ctrl_c_kills_workers_that_ignore_signals(tool: Tool, tmp_path: Path) -> None:
    process = start_and_wait(tool, tmp_path, "deaf")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None  # it waits for the worker to save
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "killed the workers" in err
    assert are_gone(workers_of(tmp_path))


def test_no_worker_outlives_its_parent(tool: Tool, tmp_path: Path) -> None:
    process = start_and_wait(tool, tmp_path, "deaf")
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while not are_gone(workers_of(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
