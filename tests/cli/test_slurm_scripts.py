"""The job scripts of `examples/slurm`: whom Slurm signals, and what the script makes of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.config import dump_config
from saccade.runs import RunFolder
from tests.train.tiny_runs import tiny
from tests.waiting import PATIENCE_S, wait_until

SCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_signal_goes_where_saccade_is(script: Path) -> None:
    """With `B:` Slurm signals the batch shell alone, without it only what srun started."""
    lines = script.read_text().splitlines()
    signals = [line for line in lines if line.startswith("#SBATCH --signal=")]
    by_srun = any(line.startswith("srun ") for line in lines)
    by_exec = any(line.startswith("exec saccade ") for line in lines)
    assert (by_srun, by_exec) in {(True, False), (False, True)}
    assert ["=B:TERM@" in line for line in signals] == [by_exec]


def test_a_signal_to_the_batch_shell_alone_saves_the_run(tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.yaml", tmp_path / "runs"
    recipe.write_text(dump_config(tiny("train.epochs=100000")))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (script,) = (script for script in SCRIPTS if script.name == "array.sbatch")
    with subprocess.Popen(
        ["bash", str(script), str(recipe), str(out), "run.keep_last=1"],
        env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": "3"},
        stderr=subprocess.DEVNULL,
    ) as process:
        run = RunFolder(out / "seed-3")
        wait_until(run.checkpoints, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 75
    assert run.status()["state"] == "preempted"
    assert run.config().run.seed == 3
