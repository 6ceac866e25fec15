"""Ctrl-C and preemption of the tool itself: exit codes that a shell or Slurm can act on."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.runs import RunFolder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_to_the_tool(
    recipe: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    words = ["train", str(recipe), "--out", str(out), "train.epochs=400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "saccade", *words], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not RunFolder(out).metrics() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert "saved; go on with --resume" in told.splitlines()[-1]
    run = RunFolder(out)
    assert run.status()["state"] == "preempted"
    newest, faults = run.newest_intact()
    assert newest is not None
    assert not faults
    assert newest.step == run.status()["step"]
