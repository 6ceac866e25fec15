"""The trackers, with the real packages: they have the metrics of `metrics.jsonl`."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saccade.config import dump_config
from saccade.runs import RunFolder
from saccade.train import train
from tests.train.test_resume import stopped_early
from tests.train.tiny_runs import tiny
from tests.waiting import PATIENCE_S

WATCHED = ("val_accuracy", "val_loss", "train_loss", "lr")


def written(run: Path, name: str) -> dict[int, float]:
    """A metric's values by step."""
    return {row["step"]: row[name] for row in RunFolder(run).metrics("epoch")}


def test_tensorboard_has_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    train(tiny("run.trackers=[tensorboard]", "train.epochs=2"), run, quiet=True)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    for name in WATCHED:
        found = {event.step: event.value for event in events.Scalars(f"epoch/{name}")}
        assert found == pytest.approx(written(run, name), rel=1e-6)
    (test,) = RunFolder(run).metrics("test")
    assert [event.value for event in events.Scalars("test/correct")] == [test["correct"]]


def test_tensorboard_has_steps_repeated_after_a_checkpoint_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, tracked = tmp_path / "run", ("run.trackers=[tensorboard]", "run.log_every_steps=1")
    stopped_early(run, *tracked)
    newest = RunFolder(run).checkpoints()[-1]
    shutil.rmtree(newest.path)  # the state after a kill before this checkpoint was written
    time.sleep(1.1)  # the names of event files differ by seconds only
    train(tiny(*tracked), run, resume=True, quiet=True)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    steps = [event.step for event in events.Scalars("step/loss")]
    assert steps == [row["step"] for row in RunFolder(run).metrics("step")]


def test_trackio_has_the_metrics_and_prints_nothing_to_stdout(tmp_path: Path) -> None:
    """In a new process, because trackio reads its output folder only once."""
    pytest.importorskip("trackio", reason="the extra `track` is not installed")
    recipe, run, kept = tmp_path / "tiny.yaml", tmp_path / "run", tmp_path / "kept"
    recipe.write_text(dump_config(tiny("run.trackers=[trackio]", "train.epochs=2")))
    done = subprocess.run(
        [sys.executable, "-m", "saccade", "train", recipe, "--out", run, "--quiet", "--json"],
        env={**os.environ, "TRACKIO_DIR": str(kept)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 2
    with sqlite3.connect(kept / "saccade.db") as database:
        rows = database.execute("select step, metrics from metrics where run_name like 'run-%'")
        logged = [(step, json.loads(values)) for step, values in rows]
    for name in WATCHED:
        found = {step: v[f"epoch/{name}"] for step, v in logged if f"epoch/{name}" in v}
        assert found == pytest.approx(written(run, name))
