"""The trackers, with the real packages: what they hold is what `metrics.jsonl` holds."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.config import dump_config
from saccade.runs import RunFolder
from saccade.train import train
from tests.train.tiny_runs import tiny
from tests.waiting import PATIENCE_S

WATCHED = ("val_accuracy", "val_loss", "train_loss", "lr")


def written(run: Path, name: str) -> dict[int, float]:
    """A metric's values by step."""
    return {row["step"]: row[name] for row in RunFolder(run).metrics("epoch")}


def test_tensorboard_holds_the_metrics(tmp_path: Path) -> None:
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


def test_trackio_holds_the_metrics_and_leaves_stdout_alone(tmp_path: Path) -> None:
    """In a fresh process, since trackio looks where to write only once."""
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
        rows = database.execute("select step, metrics from metrics where run_name = 'run'")
        logged = [(step, json.loads(values)) for step, values in rows]
    for name in WATCHED:
        found = {step: v[f"epoch/{name}"] for step, v in logged if f"epoch/{name}" in v}
        assert found == pytest.approx(written(run, name))
