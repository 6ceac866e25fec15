"""A power failure at any moment of a run leaves a true status and a run that resumes."""

import json
from pathlib import Path

import pytest

from saccade.config import Config
from saccade.report import write_report
from saccade.runs import RunFolder
from saccade.train import train
from tests.power_cuts import Recorder, recorded, restore
from tests.train.tiny_runs import final_state, tiny


def config() -> Config:
    return tiny("train.epochs=1", "run.checkpoint_every_steps=5", "run.log_every_steps=2")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    out = tmp_path_factory.mktemp("recorded") / "run"
    with recorded(out) as recorder:
        train(config(), out, quiet=True)
    return recorder


def rows_counted(run: RunFolder) -> int:
    """The number of metric rows recorded in the newest checkpoint."""
    checkpoint, faults = run.newest_intact()
    assert faults == []
    if checkpoint is None:
        return 0
    return int(
        json.loads((checkpoint.path / "trainer.json").read_text())["position"]["metric_rows"]
    )


def test_every_crash_leaves_a_run_with_a_true_status(recording: Recorder, tmp_path: Path) -> None:
    whole = RunFolder(recording.folder)
    told, states, steps = whole.metrics(), [], []
    for tree in recording.crashes():
        run = RunFolder(tmp_path / "run")
        restore(tree, run.path)
        states.append(str(run.status().get("state")))
        if run.exists():
            run.config()
        checkpoint, faults = run.newest_intact()
        assert faults == []
        steps.append(checkpoint.step if checkpoint else 0)
        rows = run.metrics()
        kept = len(rows) if checkpoint is None else max(len(rows), len(checkpoint.rows()))
        assert rows == told[: len(rows)]
        assert kept >= rows_counted(run)
        if run.is_finished():
            assert run.damage() == {}
            assert rows == told
            assert run.summary() == whole.summary()
    assert set(states) == {"None", "running", "finished"}
    assert max(steps) == whole.summary()["steps"]
    assert len(states) > 100


def test_a_run_killed_while_finishing_resumes_to_the_same_result(
    recording: Recorder, tmp_path: Path
) -> None:
    whole = RunFolder(recording.folder)
    timed = {"seconds", "img_per_s", "seconds_per_epoch", "peak_memory_mib"}
    expected = {k: v for k, v in whole.summary().items() if k not in timed}
    were = []
    for number, tree in enumerate(recording.crashes(last=5)):
        run = RunFolder(tmp_path / f"run-{number}")
        restore(tree, run.path)
        were.append(run.is_finished())
        found = train(config(), run.path, resume=True, quiet=True)
        assert {k: v for k, v in found.items() if k not in timed} == expected
        assert final_state(run.path) == final_state(whole.path)
        assert run.metrics("test") == whole.metrics("test")
        assert run.damage() == {}
        assert not list(run.path.glob(".*.????????????????????????????????"))
        write_report(run.path, tmp_path / "report", formats=["md"])
    assert set(were) == {True, False}
