"""Jobs that cannot start or fail: one clear line, and the documented exit code."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.study.comparison import ComparisonFolder
from tests.cli.conftest import Saccade
from tests.cluster.commands import start_comparison
from tests.cluster.conftest import Cluster
from tests.data.pictures import picture, save
from tests.study.tiny_comparison import tiny_plan

FOLDER = (
    "data.name=folder",
    "data.image_size=8",
    "data.num_train=null",
    "data.num_test=null",
    "train.epochs=1",
)


@pytest.fixture
def drained(cluster: Cluster) -> Iterator[Cluster]:
    """All nodes are drained; they are resumed at the end."""
    state = ("scontrol", "update", "NodeName=node[1-2]")
    cluster.command(*state, "State=DRAIN", "Reason=maintenance")
    yield cluster
    if "drain" in cluster.command("sinfo", "-h", "-o", "%T"):
        cluster.command(*state, "State=RESUME")


def test_jobs_wait_for_drained_nodes_and_fail_without_their_data(
    drained: Cluster, saccade: Saccade, tmp_path: Path
) -> None:
    root, out = tmp_path / "images", tmp_path / "study"
    for number, name in enumerate(("cat", "dog")):
        for i in range(20):
            part = "test" if i < 8 else "train"
            save(picture(100 * number + i, 8, 8), root / part / name / f"{i}.png")
    recipe = (*FOLDER, f"data.root={root}")
    plan = tiny_plan(tmp_path, recipe=recipe, attentions=("softmax", "taylor"), seeds=1)
    command = start_comparison(plan, out)
    assert command.process.stderr is not None
    lines = iter(command.process.stderr.readline, "")
    waits = next(line for line in lines if "cannot start" in line)
    assert waits.startswith("2 job(s) cannot start: ")
    assert "DRAINED" in waits
    code, printed, _ = saccade("compare", "status", out)
    assert code == 0
    assert "2 queued" in printed
    shutil.rmtree(root)
    drained.command("scontrol", "update", "NodeName=node[1-2]", "State=RESUME")
    code, _, err = command.end()
    assert code == 3, err
    last = err.splitlines()[-1]
    assert last.startswith("saccade: 2 run(s) failed; softmax/seed-0: ")
    assert str(root) in last
    assert len(ComparisonFolder.open(out).attempts.of("softmax-seed-0")) == 1
    code, printed, _ = saccade("compare", "status", out, "--json")
    failed = json.loads(printed)[0]
    assert failed["state"] == "failed"
    assert str(root) in failed["reason"]
    assert str(root) in Path(failed["log"]).read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("partition=nosuch", "Slurm refused the jobs: invalid partition specified: nosuch"),
        ("gpus_per_node=1", "Slurm refused the jobs: Invalid generic resource"),
        ("partitoin=test", "Slurm refused the jobs: unrecognized option"),
        ("nodes=2", "--slurm: nodes is set by saccade"),
        ("=3", "--slurm must be options of sbatch"),
    ],
)
def test_options_that_slurm_refuses(
    cluster: Cluster, saccade: Saccade, tmp_path: Path, options: str, message: str
) -> None:
    plan = tiny_plan(tmp_path, attentions=("softmax", "taylor"), seeds=1)
    words = ["compare", plan.recipe, "--attention", "softmax,taylor", "--seeds", "1"]
    asked = ["--launcher", "slurm", "--slurm", options]
    code, out, err = saccade(*words, *asked, "--out", tmp_path / "study")
    assert (code, out) == (2, ""), err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not cluster.jobs() or all(job.has_ended for job in cluster.jobs().values())


def test_job_that_never_begins_is_given_up(cluster: Cluster, tmp_path: Path) -> None:
    """The interpreter of the jobs does not find its packages."""
    plan = tiny_plan(tmp_path, attentions=("softmax", "taylor"), seeds=1)
    command = start_comparison(plan, tmp_path / "study", "--slurm", "export=NONE")
    code, _, err = command.end()
    assert code == 1, err
    assert sum(line.endswith("queueing it again") for line in err.splitlines()) == 4
    assert err.splitlines()[-1].endswith("2 runs are missing; go on with --resume")
