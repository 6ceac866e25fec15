"""Processes with limited memory that hang are killed; others are left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 2.0

START = f"""
import ctypes, os, re, resource, sys, threading, time
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2)
from saccade.train.signals import kill_if_hung
kill_if_hung({LIMIT_S})
print("started", flush=True)
"""
END = "\nprint('ended')\n"

FOREVER = {
    "waits for its own lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "waits for a thread that waits": (
        "lock = threading.Lock(); lock.acquire()\n"
        "thread = threading.Thread(target=lock.acquire); thread.start(); thread.join()"
    ),
    "computes in compiled code": "re.match('(a+)+$', 'a' * 64 + 'b')",
    "waits in compiled code": "ctypes.PyDLL(None).sleep(1000)",
}
FOR_A_WHILE = {
    "computes in Python": f"""
until = time.monotonic() + {2 * LIMIT_S}
while time.monotonic() < until: sum(range(1000))""",
    "sleeps": f"time.sleep({2 * LIMIT_S})",
    "waits for a thread that reads": (
        "thread = threading.Thread(target=os.read, args=(0, 1)); thread.start(); thread.join()"
    ),
}


def run(body: str, kind: str = "limited") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + body + END, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("body", FOREVER.values(), ids=FOREVER)
def test_a_hung_process_is_killed(body: str) -> None:
    process = run(body)
    out, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert out == "started\n"
    assert "saccade: killed a process that hung because memory ran out (ulimit -v:" in err


@pytest.mark.parametrize("body", FOR_A_WHILE.values(), ids=FOR_A_WHILE)
def test_a_working_process_is_left_alone(body: str) -> None:
    process = run(body)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(2 * LIMIT_S)
    out, err = process.communicate("x", timeout=120)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_a_process_without_a_limit_is_not_watched() -> None:
    process = run("os.read(0, 1)", "free")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    assert psutil.Process(process.pid).children() == []
    process.communicate("x", timeout=120)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_watching_process_ends_with_the_watched_one(number: signal.Signals) -> None:
    process = run("os.read(0, 1)")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    (watching,) = psutil.Process(process.pid).children()
    process.send_signal(number)
    process.communicate(timeout=120)
    assert watching.wait(timeout=20) in (None, 0, -signal.SIGKILL)
