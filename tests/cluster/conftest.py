"""Fixtures: a real Slurm and a real PostgreSQL, for tests marked `cluster`."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from saccade.study import slurm
from tests.cli.conftest import saccade
from tests.train.tiny_runs import free_port
from tests.waiting import PATIENCE_S

__all__ = ["saccade"]

SCRIPT = Path(__file__).with_name("slurm.sh")
ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder: they need minutes, and root."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.slow)


@dataclass
class Cluster:
    """The running Slurm, controlled by its own commands."""

    folder: Path

    def restart_controller(self, pause_s: float) -> None:
        subprocess.run([SCRIPT, "restart", self.folder, str(pause_s)], check=True)

    def command(self, *words: object) -> str:
        done = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
        return done.stdout

    def jobs(self) -> dict[str, slurm.Job]:
        return slurm.read_queue() or {}

    def wait(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a Slurm of our own needs root")
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        pytest.skip("Slurm is not installed: run tests/cluster/slurm.sh install")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        done = subprocess.run([SCRIPT, "start", folder], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            pytest.skip(f"Slurm cannot run here: {done.stderr.strip()}")
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        yield Cluster(folder)
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=False, timeout=120)
        os.environ.pop("SLURM_CONF", None)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Slurm without jobs, and a launcher that looks often."""
    monkeypatch.setattr(slurm, "POLL_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    yield session_cluster
    session_cluster.command("scancel", "--me")
    running = {"PENDING", "RUNNING", "COMPLETING"}
    session_cluster.wait(
        lambda: not any(job.state in running for job in session_cluster.jobs().values())
    )


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """URL of an empty database of a PostgreSQL server started for the tests."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs or os.geteuid() != 0:
        pytest.skip("PostgreSQL of Debian's package `postgresql` is needed, and root")
    as_postgres = ["runuser", "-u", "postgres", "--"]
    folder, port = Path(tempfile.mkdtemp(prefix="postgresql-")), free_port()
    shutil.chown(folder, pwd.getpwnam("postgres").pw_name)
    control = [*as_postgres, programs[-1] / "pg_ctl", "-D", folder / "data", "-w", "-s"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    initdb = [programs[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-U", "tester"]
    subprocess.run([*as_postgres, *initdb], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*control, "-o", options, "-l", folder / "log", "start"], check=True)
    try:
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=True)
        shutil.rmtree(folder, ignore_errors=True)
