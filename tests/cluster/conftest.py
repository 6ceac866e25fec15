"""Fixtures: a real Slurm and a real PostgreSQL, for tests marked `cluster`."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from saccade.study import slurm_queue
from tests.cli.conftest import saccade
from tests.cluster.daemons import Daemons, running_daemons
from tests.train.tiny_runs import free_port
from tests.waiting import PATIENCE_S

__all__ = ["saccade"]

SCRIPT = Path(__file__).with_name("slurm.sh")
ROOT = Path(__file__).parents[2]
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")


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
    daemons: Daemons

    def restart_controller(self, pause_s: float) -> None:
        code, output = self.daemons.run(SCRIPT, "restart", self.folder, pause_s)
        assert code == 0, output

    def command(self, *words: object) -> str:
        done = subprocess.run(
            [*map(str, words)], check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout

    def jobs(self) -> dict[str, slurm_queue.Job]:
        return slurm_queue.read_queue() or {}

    def end_of(self, job: str) -> str:
        """Wait until a job has ended; its state."""
        found: list[slurm_queue.Job] = []

        def has_ended() -> bool:
            found[:] = [known for known in self.jobs().values() if known.id == job]
            return bool(found) and found[0].has_ended

        self.wait(has_ended, pause_s=0.5)
        return found[0].state

    def wait(self, happened: Callable[[], object], pause_s: float = 0.1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(pause_s)


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    if sys.platform != "linux":
        pytest.skip("a Slurm of our own needs Linux")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of our own needs root")
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed ({missing[0]}): run tests/cluster/slurm.sh install")
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running_daemons() as daemons:
            code, output = daemons.run(SCRIPT, "start", folder)
            if code:
                pytest.skip(f"Slurm cannot run here: {' '.join(output.split())}")
            os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
            yield Cluster(folder, daemons)
            del os.environ["SLURM_CONF"]


@pytest.fixture
def cluster(session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Slurm without jobs, and a launcher that looks often."""
    monkeypatch.setattr(slurm_queue, "POLL_S", 1.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    programs = Path(sys.executable).parent  # saccade and torchrun, for the scripts
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
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
    with tempfile.TemporaryDirectory(prefix="postgresql-") as name, running_daemons() as daemons:
        folder, port = Path(name), free_port()
        shutil.chown(folder, "postgres")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
        initdb = [programs[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-U", "tester"]
        control = [*as_postgres, programs[-1] / "pg_ctl", "-D", folder / "data", "-w", "-s"]
        code, output = daemons.run(*as_postgres, *initdb)
        assert code == 0, output
        code, output = daemons.run(*control, "-o", options, "-l", folder / "log", "start")
        assert code == 0, output
        yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        daemons.run(*control, "-m", "immediate", "stop")  # which gives its shared memory back
