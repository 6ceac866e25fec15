"""The scripts of `examples/slurm` on a real Slurm: a run on two nodes, an array of seeds."""

import time
from collections.abc import Sequence
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

SCRIPTS = ROOT / "examples" / "slurm"
SMALL = ("--cpus-per-task=1", "--gpus-per-node=0")
EPOCHS = 12


def is_of_node(process: psutil.Process, node: str) -> bool:
    try:
        return "saccade" in process.cmdline() and process.environ()["SLURMD_NODENAME"] == node
    except (psutil.Error, KeyError):
        return False


def trainer_on(node: str) -> psutil.Process:
    """The process that trains on a node; torchrun's agent is its parent."""
    found = [p for p in psutil.process_iter() if is_of_node(p, node)]
    (process,) = (p for p in found if p.environ().get("LOCAL_RANK") == "0")
    return process


def submit(
    cluster: Cluster, folder: Path, changes: Sequence[str], *options: str
) -> tuple[str, RunFolder, Path]:
    """Submit `train.sbatch` with the tiny recipe: the job, the folder of its run, and its log."""
    recipe, run, log = folder / "tiny.yaml", RunFolder(folder / "run"), folder / "log"
    recipe.write_text(dump_config(tiny("train.device=cpu", *changes)))
    asked = (*SMALL, *options, f"--output={log}")
    script = SCRIPTS / "train.sbatch"
    job = cluster.command("sbatch", "--parsable", *asked, script, recipe, run.path).strip()
    cluster.wait(lambda: run.exists() and len(run.metrics("epoch")) >= 3)
    return job, run, log


@pytest.mark.parametrize(("strategy", "hangs"), [("ddp", True), ("fsdp", False)])
def test_run_on_two_nodes_goes_on_after_a_kill_on_one(
    cluster: Cluster, launch: Launch, tmp_path: Path, strategy: str, hangs: bool
) -> None:
    """If the process on the other node hangs, only the agents tell that it has to start again."""
    changes = (f"train.epochs={EPOCHS}", f"train.strategy={strategy}")
    undisturbed = launch(tiny("train.device=cpu", *changes), tmp_path / "here", world_size=2)
    for process in undisturbed:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    job, run, log = submit(cluster, tmp_path, changes)
    if hangs:
        trainer_on("node1").suspend()
    trainer_on("node2").kill()
    assert cluster.end_of(job) == "COMPLETED", log.read_text()[-4000:]
    assert [row["epoch"] for row in run.metrics("epoch")] == [*range(1, EPOCHS + 1)]
    environment = run.environment()
    assert environment["world_size"] == 2
    assert [again["step"] > 0 for again in environment["resumed"]] == [True]
    assert final_state(run.path) == final_state(tmp_path / "here")


def test_run_on_two_nodes_saves_when_it_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    job, run, log = submit(cluster, tmp_path, ["train.epochs=30"])
    cluster.command("scontrol", "requeue", job)
    time.sleep(1)
    assert cluster.end_of(job) == "COMPLETED", log.read_text()[-4000:]
    (again,) = run.environment()["resumed"]
    assert again["step"] > 0
    assert run.is_finished()


def test_run_on_two_nodes_queues_itself_again_at_its_time_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm announces the limit up to 30 s early: at least a minute after the start."""
    endless = ("train.epochs=100000", "run.checkpoint_every_steps=1000", "run.keep_last=1")
    _, run, log = submit(cluster, tmp_path, endless, "--time=2", "--signal=TERM@30")
    cluster.wait(lambda: run.environment()["resumed"])
    (again,) = run.environment()["resumed"]
    assert again["step"] > 0
    assert f"stopped at step {again['step']} and saved" in log.read_text()


def test_array_of_seeds_goes_on_when_one_is_requeued(cluster: Cluster, tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.yaml", tmp_path / "runs"
    recipe.write_text(dump_config(tiny("train.epochs=30", "train.device=cpu")))
    script, runs = SCRIPTS / "array.sbatch", [RunFolder(out / f"seed-{i}") for i in range(2)]
    small = ("--array=0-1", "--cpus-per-task=1", "--gpus=0", f"--output={tmp_path}/log-%a")
    main = cluster.command("sbatch", "--parsable", *small, script, recipe, out).strip()
    cluster.wait(lambda: runs[1].exists() and len(runs[1].metrics("epoch")) >= 3)
    cluster.command("scontrol", "requeue", f"{main}_1")
    for number, run in enumerate(runs):
        log = tmp_path / f"log-{number}"
        assert cluster.end_of(f"{main}_{number}") == "COMPLETED", log.read_text()[-4000:]
        assert run.is_finished()
        assert run.config().run.seed == number
        assert [again["step"] > 0 for again in run.environment()["resumed"]] == [True] * number
