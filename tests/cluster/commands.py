"""Comparisons and searches by the command line, as processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

from saccade.study.comparison import ComparisonFolder, Plan
from tests.cluster.conftest import Cluster
from tests.waiting import PATIENCE_S

EPOCHS = 40
LONG = (f"train.epochs={EPOCHS}", "run.checkpoint_every_steps=5")


class Command:
    """A running `saccade` with its output."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "saccade", *map(str, words)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def start_comparison(plan: Plan, out: Path, *words: object) -> Command:
    """`saccade compare --launcher slurm` with the recipe, attentions and seeds of a plan."""
    asked = ["--attention", ",".join(plan.attentions), "--seeds", len(plan.seeds)]
    return Command(
        *("compare", plan.recipe, *asked, "--out", out, "--launcher", "slurm", "--resume"), *words
    )


def epoch_of(folder: ComparisonFolder, name: str) -> int:
    (job,) = (job for job in folder.plan.jobs() if job.name == name)
    return len(folder.run(job).metrics("epoch"))


def jobs_of(out: Path) -> dict[str, str]:
    path = out / "slurm" / "jobs.json"
    return json.loads(path.read_text()) if path.exists() else {}


def starts(out: Path) -> dict[str, list[int]]:
    """The steps at which each run was started and resumed."""
    folder = ComparisonFolder.open(out)
    runs = {job.name: folder.run(job).environment() for job in folder.plan.jobs()}
    return {name: [0, *(again["step"] for again in run["resumed"])] for name, run in runs.items()}


def wait_for_epoch(cluster: Cluster, out: Path, name: str, epoch: int) -> str:
    """Wait until a run is in the middle; return its job."""
    cluster.wait(lambda: (out / "study.json").exists() and name in jobs_of(out))
    cluster.wait(lambda: epoch_of(ComparisonFolder.open(out), name) >= epoch)
    return jobs_of(out)[name]
