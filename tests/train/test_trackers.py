"""The trackers, with the real packages: they have the metrics of `metrics.jsonl`."""

import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.config import dump_config
from saccade.errors import ConfigError
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.trackers import check_trackers
from tests.train.test_resume import stopped_early
from tests.train.tiny_runs import tiny, unfinish
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


def train_in_a_process(folder: Path, *changes: str, **environment: str) -> tuple[int, str]:
    """Train the tiny run in a new process, because trackers keep global state."""
    recipe = folder / "tiny.yaml"
    recipe.write_text(dump_config(tiny("run.log_every_steps=1", "train.epochs=3", *changes)))
    words = ["train", recipe, "--out", folder / "run", "--resume", "--quiet", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "saccade", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return len(done.stdout.splitlines()), done.stderr


def lose_the_last_checkpoints(folder: Path) -> None:
    """Turn a finished run into one that was killed in its second epoch, after logging all of it."""
    run = RunFolder(folder / "run")
    unfinish(run)
    for checkpoint in run.checkpoints()[1:]:
        shutil.rmtree(checkpoint.path)
    assert run.newest_step() < run.metrics("step")[-1]["step"]


def assert_once(folder: Path, logged: list[tuple[int, dict[str, float]]]) -> None:
    """Check that a tracker has each value of `metrics.jsonl` exactly once."""
    rows = RunFolder(folder / "run").metrics()
    for kind, name in (("step", "loss"), ("epoch", "val_loss"), ("test", "correct")):
        found = [(step, v[f"{kind}/{name}"]) for step, v in logged if f"{kind}/{name}" in v]
        expected = [(row["step"], row[name]) for row in rows if row["kind"] == kind]
        assert found == [(step, pytest.approx(value)) for step, value in expected]


def records_of(file: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file: LevelDB's log format behind a header of 7 bytes."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def in_wandb(folder: Path) -> list[tuple[int, dict[str, float]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: list[tuple[int, dict[str, float]]] = []
    ids = set()
    for file in sorted((folder / "run" / "wandb").glob("offline-run-*/*.wandb")):
        ids.add(file.stem)
        for content in records_of(file):
            record = Record()
            record.ParseFromString(content)
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if items:
                values = {key: json.loads(value) for key, value in items.items()}
                found.append((values["_step"], values))
    assert len(ids) == 1
    return found


def test_wandb_has_resumed_steps_once(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    assert train_in_a_process(tmp_path, "run.trackers=[wandb]", **offline)[0] == 1
    lose_the_last_checkpoints(tmp_path)
    assert train_in_a_process(tmp_path, "run.trackers=[wandb]", **offline)[0] == 1
    assert len([*(tmp_path / "run" / "wandb").glob("offline-run-*")]) == 2
    assert_once(tmp_path, in_wandb(tmp_path))


def in_mlflow(file: Path) -> list[tuple[int, dict[str, float]]]:
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, key, value, run_uuid from metrics order by step")
        logged = [(step, {key: value}, entry) for step, key, value, entry in rows]
        ((status,),) = database.execute("select status from runs")
        params = dict(database.execute("select key, value from params"))
    assert status == "FINISHED"
    assert params["train.epochs"] == "3"
    return [(step, values) for step, values, _ in logged]


def test_mlflow_has_resumed_steps_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    place = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    assert train_in_a_process(tmp_path, "run.trackers=[mlflow]", **place)[0] == 1
    lose_the_last_checkpoints(tmp_path)
    assert train_in_a_process(tmp_path, "run.trackers=[mlflow]", **place)[0] == 1
    assert_once(tmp_path, in_mlflow(tmp_path / "mlflow.db"))


def in_trackio(file: Path) -> list[tuple[int, dict[str, float]]]:
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics where run_name like 'run-%'")
        return sorted(((s, json.loads(values)) for s, values in rows), key=lambda row: row[0])


def test_trackio_has_resumed_steps_once(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="the extra `track` is not installed")
    place = {"TRACKIO_DIR": str(tmp_path / "kept")}
    train_in_a_process(tmp_path, "run.trackers=[trackio]", **place)
    lose_the_last_checkpoints(tmp_path)
    train_in_a_process(tmp_path, "run.trackers=[trackio]", **place)
    assert_once(tmp_path, in_trackio(tmp_path / "kept" / "saccade.db"))


def test_missing_tracker_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"'wandb' is not installed; pip install 'saccade\[wandb"):
        check_trackers(["wandb"])


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
