"""A run on two nodes of a real Slurm, by the script in `examples/slurm`."""

import time
from pathlib import Path

import psutil
import pytest

from saccade.config import dump_config
from saccade.runs import RunFolder
from tests.cluster.conftest import ROOT, Cluster
from tests.train.conftest import Launch, launch, start
from tests.train.tiny_runs import final_state, tiny
from tests.waiting import PATIENCE_S

__all__ = ["launch", "start"]

SMALL = ("--cpus-per-task=1", "--gpus-per-node=0")
EPOCHS = 12


def is_of_node(process: psutil.Process, node: str) -> bool:
    try:
        return "saccade" in process.cmdline() and process.environ()["SLURMD_NODENAME"] == node
    except (psutil.Error, KeyError):
        return False


def kill_on(node: str) -> None:
    """Kill the process that trains on a node; torchrun's agent, its parent, stays."""
    found = [p for p in psutil.process_iter() if is_of_node(p, node)]
    trains = [p for p in found if p.environ().get("LOCAL_RANK") == "0"]
    assert trains
    for process in trains:
        process.kill()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_run_on_two_nodes_goes_on_after_a_kill_on_one(
    cluster: Cluster, launch: Launch, tmp_path: Path, strategy: str
) -> None:
    changes = (f"train.epochs={EPOCHS}", f"train.strategy={strategy}", "train.device=cpu")
    undisturbed = launch(tiny(*changes), tmp_path / "here", world_size=2)
    for process in undisturbed:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    recipe, run = tmp_path / "tiny.yaml", RunFolder(tmp_path / "run")
    recipe.write_text(dump_config(tiny(*changes)))
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    log = tmp_path / "log"
    words = ("sbatch", "--parsable", *SMALL, f"--output={log}", script, recipe, run.path)
    job = cluster.command(*words).strip()
    cluster.wait(lambda: run.exists() and len(run.metrics("epoch")) >= 3)
    kill_on("node2")
    cluster.wait(lambda: cluster.jobs()[job].has_ended)
    assert cluster.jobs()[job].state == "COMPLETED", log.read_text()[-4000:]
    assert [row["epoch"] for row in run.metrics("epoch")] == [*range(1, EPOCHS + 1)]
    environment = run.environment()
    assert environment["world_size"] == 2
    assert [again["step"] > 0 for again in environment["resumed"]] == [True]
    assert final_state(run.path) == final_state(tmp_path / "here")


def test_run_on_two_nodes_saves_when_it_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    recipe, run = tmp_path / "tiny.yaml", RunFolder(tmp_path / "run")
    recipe.write_text(dump_config(tiny("train.epochs=30", "train.device=cpu")))
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    log = tmp_path / "log"
    words = ("sbatch", "--parsable", *SMALL, f"--output={log}", script, recipe, run.path)
    job = cluster.command(*words).strip()
    cluster.wait(lambda: run.exists() and len(run.metrics("epoch")) >= 3)
    cluster.command("scontrol", "requeue", job)
    time.sleep(1)
    cluster.wait(lambda: cluster.jobs()[job].has_ended)
    assert cluster.jobs()[job].state == "COMPLETED", log.read_text()[-4000:]
    (again,) = run.environment()["resumed"]
    assert again["step"] > 0
    assert run.is_finished()
