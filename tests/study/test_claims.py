"""Claims: exactly one worker has a piece of work, and a dead one's is free again."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from saccade.study import claims as module
from saccade.study.claims import Claims
from tests.train.tiny_runs import PROCESSES
from tests.waiting import PATIENCE_S, wait_until


def take_and_sleep(folder: Path, name: str, progress: int = 0) -> None:
    """Body of a child process: claim, say so, and hold on."""
    assert Claims(folder).take(name, progress) is not None
    (folder / "taken").touch()
    time.sleep(PATIENCE_S)


def die_with_a_claim(folder: Path, name: str, progress: int = 0) -> None:
    """Let another process take a claim and kill it."""
    process = PROCESSES.Process(target=take_and_sleep, args=(folder, name, progress))
    process.start()
    wait_until((folder / "taken").exists, process)
    assert Claims(folder).take(name) is None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (folder / "taken").unlink()


def compete(folder: Path, rounds: int) -> None:
    """Body of a child process: add 1 to a number in a file, many times, each under the claim."""
    claims, number = Claims(folder), folder / "number"
    for _ in range(rounds):
        with claims.hold("number"):
            value = int(number.read_text())
            time.sleep(0.001)
            number.write_text(str(value + 1))


def test_one_at_a_time(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    claim = claims.take("work")
    assert claim is not None
    assert claims.take("work") is None
    assert claims.take("other") is not None
    claim.give_back()
    again = claims.take("work")
    assert again is not None
    assert not claim.is_ours
    assert again.is_ours


def test_no_step_is_lost_among_competitors(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    processes = [PROCESSES.Process(target=compete, args=(tmp_path, 8)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0] * 3
    assert (tmp_path / "number").read_text() == "24"


def test_a_killed_owner_loses_its_claim_at_once(tmp_path: Path) -> None:
    die_with_a_claim(tmp_path, "work")
    claim = Claims(tmp_path).take("work")
    assert claim is not None
    assert claim.deaths == 1


def test_deaths_are_counted_only_while_nothing_moves(tmp_path: Path) -> None:
    die_with_a_claim(tmp_path, "work", progress=5)
    die_with_a_claim(tmp_path, "work", progress=5)
    claims = Claims(tmp_path)
    claim = claims.take("work", progress=5)
    assert claim is not None
    assert claim.deaths == 2
    claim.give_back()
    die_with_a_claim(tmp_path, "work", progress=5)
    moved = claims.take("work", progress=6)
    assert moved is not None
    assert moved.deaths == 0


def test_an_owner_elsewhere_is_judged_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    claims, others = Claims(tmp_path), {*threading.enumerate()}
    sleeper = claims.take("work")
    assert sleeper is not None
    (beat,) = {*threading.enumerate()} - others
    owner = json.loads(sleeper.path.read_text())
    sleeper.path.write_text(json.dumps({**owner, "kernel": "another machine"}))
    time.sleep(0.1)
    assert claims.take("work") is None  # it beats
    sleeper._given_back.set()
    beat.join()
    assert claims.take("work") is None  # it stopped only just now
    long_ago = time.time() - module.GRACE_S - 5
    os.utime(sleeper.path, (long_ago, long_ago))
    successor = claims.take("work")
    assert successor is not None
    assert successor.deaths == 1
    assert not sleeper.is_ours  # should it wake up, it knows
