"""Claims: only one worker holds a claim, and the claim of a dead worker is free again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.errors import ConfigError
from saccade.study import claims as module
from saccade.study.claims import Claims
from tests.train.tiny_runs import PROCESSES
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


def take_and_sleep(folder: Path, name: str) -> None:
    """Body of a child process: take a claim, create the file `taken`, and keep the claim."""
    assert Claims(folder).take(name) is not None
    (folder / "taken").touch()
    time.sleep(PATIENCE_S)


def die_with_a_claim(folder: Path, name: str) -> None:
    """Let another process take a claim, and kill that process."""
    process = PROCESSES.Process(target=take_and_sleep, args=(folder, name))
    process.start()
    wait_until((folder / "taken").exists, process)
    assert Claims(folder).take(name) is None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (folder / "taken").unlink()


def compete(folder: Path, rounds: int) -> None:
    """Body of a child process: add 1 to a number in a file `rounds` times, under a claim."""
    claims, number = Claims(folder), folder / "number"
    for _ in range(rounds):
        with claims.hold("number"):
            value = int(number.read_text())
            time.sleep(0.001)
            number.write_text(str(value + 1))


def test_claim_is_held_by_one_owner_at_a_time(tmp_path: Path) -> None:
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


def test_competing_processes_lose_no_update(tmp_path: Path) -> None:
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
    assert Claims(tmp_path).take("work") is not None


def test_owner_on_another_machine_is_alive_while_its_heartbeat_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    monkeypatch.setattr(module, "_beats", [])  # starts a thread with the short interval
    claims = Claims(tmp_path)
    sleeper = claims.take("work")
    assert sleeper is not None
    owner = json.loads(sleeper.path.read_text())
    sleeper.path.write_text(json.dumps({**owner, "kernel": "another machine"}))
    long_ago = time.time() - module.GRACE_S - 5
    os.utime(sleeper.path, (long_ago, long_ago))
    wait_until(lambda: sleeper.path.stat().st_mtime > long_ago)  # the heartbeat has run
    assert Claims(tmp_path).take("work") is None
    module._owned.clear()  # the heartbeat stops, and another process looks
    time.sleep(0.1)
    assert claims.take("work") is None  # the heartbeat has stopped only now
    os.utime(sleeper.path, (long_ago, long_ago))
    successor = claims.take("work")
    assert successor is not None
    assert not sleeper.is_ours  # if it wakes up, it notices


NO_LINKS = """
#include <errno.h>
int link(const char *from, const char *to) { errno = EPERM; return -1; }
int linkat(int a, const char *from, int b, const char *to, int flags) { errno = EPERM; return -1; }
int flock(int fd, int how) { errno = ENOSYS; return -1; }
"""

COMPETE = "import sys; from pathlib import Path; from tests.study.test_claims import compete; "


def test_claims_work_without_hard_links_or_flock(tmp_path: Path) -> None:
    """Claims are then created under their final names, and use POSIX locks."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(NO_LINKS)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "number").write_text("0")
    code = COMPETE + f"compete(Path({str(folder)!r}), 8)"
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * 3
    assert (folder / "number").read_text() == "24"
    released = next(folder.glob("number.*"))
    assert released.read_bytes().strip() == module.FREE  # proves that hard links were off


def test_damaged_claim_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "work.1").write_bytes(b"\xff\x00[[[[")
    with pytest.raises(
        ConfigError, match=r"work\.1.*delete it when no worker is running on this study"
    ):
        Claims(tmp_path).take("work")
