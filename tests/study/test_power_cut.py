"""After a power failure at any moment, the results count only complete runs."""

import json
from pathlib import Path

import pytest

from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, progress
from tests.power_cuts import recorded, restore
from tests.study.tiny_comparison import tiny_plan


def test_results_never_count_an_incomplete_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "POLL_S", 0.01)  # results are written between the two runs
    plan = tiny_plan(
        tmp_path,
        *("train.epochs=1", "run.checkpoint_every_steps=null", "run.log_every_steps=100"),
        attentions=("softmax", "taylor"),
        seeds=1,
    )
    with recorded(tmp_path / "study") as recorder:
        compare(plan, tmp_path / "study", quiet=True)
    counts = []
    for tree in recorder.crashes(last=80):
        restore(tree, tmp_path / "cut")
        folder = ComparisonFolder(tmp_path / "cut")
        if not (folder.path / "results.json").exists():
            continue
        results = json.loads((folder.path / "results.json").read_text())
        counted = sum(row["runs"] for row in results["rows"])
        assert counted <= len(folder.finished())
        assert results["complete"] == (counted == 2)
        counts.append(counted)
    assert set(counts) == {1, 2}
    assert not list((tmp_path / "study").rglob(".*.json.*"))
