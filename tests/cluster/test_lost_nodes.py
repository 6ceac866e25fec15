"""Nodes that Slurm loses: without power, and cut off while their jobs go on."""

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from saccade.study import compare
from saccade.study.comparison import ComparisonFolder
from tests.cluster.commands import LONG, start_comparison, starts, wait_for_epoch
from tests.cluster.conftest import Cluster
from tests.study.test_comparison_kills import assert_nothing_twice_or_lost
from tests.study.tiny_comparison import tiny_plan


def node_of(process: psutil.Process) -> str:
    """The node on which a process of a job runs."""
    try:
        return process.environ().get("SLURMD_NODENAME", "")
    except psutil.Error:
        return ""


def kill_node(cluster: Cluster, node: str, *, with_jobs: bool) -> None:
    """Kill the daemon of a node and, as a power cut does, the jobs with their guardians."""
    daemon = psutil.Process(int((cluster.folder / f"slurmd-{node}.pid").read_text()))
    ours = psutil.Process(cluster.daemons.process.pid).children(recursive=True)
    jobs = [process for process in ours if node_of(process) == node]
    assert jobs
    steps = (step for job in jobs for step in job.parents() if is_step(step))
    for process in {daemon, *jobs, *steps} if with_jobs else {daemon}:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def is_step(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name().startswith("slurmstepd")
    return False


@pytest.fixture
def fragile(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose lost nodes are brought back at the end."""
    yield cluster
    for node in ("node1", "node2"):
        pid = int((cluster.folder / f"slurmd-{node}.pid").read_text())
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            code, output = cluster.daemons.run(
                "env", f"SLURM_CONF={cluster.folder / 'slurm.conf'}", "slurmd", "-N", node
            )
            assert code == 0, output
    for node in ("node1", "node2"):
        cluster.wait(lambda node=node: not is_down(cluster, node, resume=True))


def is_down(cluster: Cluster, node: str, *, resume: bool = False) -> bool:
    """True if Slurm does not use a node; `resume` asks it to do so."""
    state = cluster.command("sinfo", "-h", "-n", node, "-o", "%T").split()[0]
    found = "down" in state or "drain" in state
    if found and resume:
        with suppress(Exception):
            cluster.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    return found


@pytest.mark.parametrize("with_jobs", [True, False], ids=["without_power", "cut_off"])
def test_run_of_a_lost_node_starts_again_elsewhere(
    fragile: Cluster, tmp_path: Path, with_jobs: bool
) -> None:
    """The job of a node that is only cut off goes on; its successor waits for the run's lock."""
    plan = tiny_plan(tmp_path, recipe=LONG, attentions=("softmax", "taylor"), seeds=1)
    out, here = tmp_path / "study", tmp_path / "here"
    command = start_comparison(plan, out, "--jobs", 1)
    job = wait_for_epoch(fragile, out, "softmax/seed-0", 2)
    folder = ComparisonFolder.open(out)
    worker = psutil.Process(folder.attempts.of("softmax-seed-0")[-1].pid)
    node = node_of(worker)
    worker.suspend()  # else the run might end before Slurm has noticed
    kill_node(fragile, node, with_jobs=with_jobs)
    lost = ("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=no answer")
    fragile.command(*lost)  # as the controller does after SlurmdTimeout
    fragile.wait(lambda: (known := fragile.jobs().get(job)) and known.state == "RUNNING")
    with suppress(psutil.NoSuchProcess):
        worker.resume()
    code, _, err = command.end()
    assert code == 0, err
    compare(plan, here, quiet=True)
    assert_nothing_twice_or_lost(out, plan, here)
    assert starts(out)["taylor/seed-0"] == [0]
    assert len(starts(out)["softmax/seed-0"]) == 1 + with_jobs
