"""Data workers: signals to the run, lost workers, and workers that do not end."""

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from saccade.config import Config
from saccade.io import write_file
from saccade.runs import RunFolder
from saccade.train.loop import Trainer
from tests.data.pictures import good_folder
from tests.train.conftest import Launch
from tests.train.moments import held
from tests.train.tiny_runs import tiny, train_and_exit
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A run with two data workers and ten batches per epoch."""
    root = good_folder(tmp_path / "images", count=30)
    folder = ["data.name=folder", f"data.root={root}", "data.image_size=16", "data.workers=2"]
    every = ["data.num_train=null", "data.num_test=null", "run.checkpoint_every_steps=null"]
    return tiny(*folder, *every, "train.batch_size=4")


def is_reading(trainer: Trainer) -> bool:
    """Pause in the middle of an epoch, with workers; their process ids are written to a file."""
    workers = [str(child.pid) for child in multiprocessing.active_children()]
    met = trainer.at.step == 3 and bool(workers)
    if met:
        write_file(trainer.run.path.parent / "workers", " ".join(workers))
    return met


def train_in_a_group(config: Config, out: Path, environment: dict[str, str]) -> None:
    """Body of a child process: train in a process group of its own, as a job of a shell does.

    Its workers are forked, as those of the tool are: from another server they would not be its own.
    """
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)
    train_and_exit(config, out, environment)


def start_reading(config: Config, out: Path, launch: Launch) -> tuple[BaseProcess, list[int]]:
    """A run that pauses while its workers read, and the process ids of the workers."""
    (process,) = launch(config, out, body=partial(held, is_reading, train_in_a_group))
    written = out.parent / "workers"
    wait_until(written.exists, process)
    return process, [int(number) for number in written.read_text().split()]


def ended(number: int) -> bool:
    """True if a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def told(out: Path, process: BaseProcess) -> str:
    return (out.parent / f"error-{process.pid}").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_to_all_processes_saves(
    config: Config, tmp_path: Path, launch: Launch, number: signal.Signals, code: int
) -> None:
    """Terminals, schedulers and service managers send signals to all processes."""
    out = tmp_path / "run"
    process, workers = start_reading(config, out, launch)
    for worker in workers:
        os.kill(worker, number)
    assert process.pid is not None
    os.killpg(process.pid, number)
    process.join(PATIENCE_S)
    assert process.exitcode == code
    assert told(out, process) == "stopped at step 3 and saved; go on with --resume"
    assert RunFolder(out).status()["state"] == "preempted"
    assert RunFolder(out).newest_intact()[0] is not None
    assert all(map(ended, workers))


def test_a_lost_worker_fails_the_run(config: Config, tmp_path: Path, launch: Launch) -> None:
    out = tmp_path / "run"
    process, workers = start_reading(config, out, launch)
    os.kill(workers[0], signal.SIGKILL)
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    assert "lost a process that reads images" in told(out, process)
    assert f"(pid {workers[0]}) is killed by signal: Killed;" in told(out, process)
    assert told(out, process).endswith("go on with --resume")
    assert len(told(out, process).splitlines()) == 1
    assert RunFolder(out).status()["state"] == "failed"
    assert RunFolder(out).status()["message"] == told(out, process)
    wait_until(lambda: all(map(ended, workers)))


def test_workers_end_with_the_run(config: Config, tmp_path: Path, launch: Launch) -> None:
    """Also workers that ignored an earlier signal to stop."""
    process, workers = start_reading(config, tmp_path / "run", launch)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    process.kill()
    process.join(PATIENCE_S)
    with RunFolder(tmp_path / "run").locked():  # the workers do not hold the lock
        assert not any(map(ended, workers))
    wait_until(lambda: all(map(ended, workers)))


STUCK = """
import time, torch
from torch.utils.data import _utils
from saccade.data import decoding

class Stuck:
    def __init__(self, split): pass
    def __len__(self): return 9
    def __getitem__(self, request):
        time.sleep(request and 3600)
        return torch.zeros(1), torch.zeros(1), {}

_utils.MP_STATUS_CHECK_INTERVAL = 0.1
decoding._Reader = Stuck
batches = decoding.decode_batches(None, iter(range(9)), 2, torch.device("cpu"), {})
next(batches)
"""


def test_stuck_workers_do_not_delay_the_exit() -> None:
    """The workers ignore the signal by which torch and Python end them."""
    done = subprocess.run([sys.executable, "-c", STUCK], timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
