"""Watchers of a run can stop it, and a run can skip the test set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import Stopped
from saccade.runs import RunFolder
from saccade.train import train
from tests.train.tiny_runs import tiny


def test_watcher_sees_every_epoch(finished: Path, tmp_path: Path) -> None:
    rows: list[Mapping[str, Any]] = []
    train(tiny(), tmp_path / "run", quiet=True, on_epoch=rows.append)
    assert rows == RunFolder(tmp_path / "run").metrics("epoch")
    seen = [row["val_accuracy"] for row in rows]
    assert seen == [row["val_accuracy"] for row in RunFolder(finished).metrics("epoch")]


def test_watcher_can_stop_a_run(tmp_path: Path) -> None:
    def stop_at_two(row: Mapping[str, Any]) -> None:
        if row["epoch"] == 2:
            raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        train(tiny(), tmp_path / "run", quiet=True, on_epoch=stop_at_two)
    run = RunFolder(tmp_path / "run")
    assert run.status()["state"] == "stopped"
    assert run.status()["message"] == "enough"
    assert len(run.metrics("epoch")) == 2
    assert run.summary() == {}


def test_run_without_test_does_not_use_the_test_set(finished: Path, tmp_path: Path) -> None:
    summary = train(tiny("run.test=false"), tmp_path / "run", quiet=True)
    run, whole = RunFolder(tmp_path / "run"), RunFolder(finished).summary()
    assert run.metrics("test") == []
    assert run.predictions() == {}
    unknown = {key for key, value in summary.items() if value is None}
    assert unknown >= {"test_accuracy", "test_loss", "test_accuracy_best", "test_accuracy_last"}
    for key in ("selected", "best_epoch", "val_accuracy_best", "val_accuracy_last", "steps"):
        assert summary[key] == whole[key] is not None


def test_search_section_is_ignored_by_training(tmp_path: Path) -> None:
    config = tiny("search.optim.lr=[0.1, 0.2]", "train.epochs=1")
    train(config, tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").config() == config
    summary = train(tiny("train.epochs=1"), tmp_path / "run", resume=True, quiet=True)
    assert summary["epochs"] == 1
