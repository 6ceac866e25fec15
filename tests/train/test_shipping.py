"""Shipped weights: their record counts only images that were read."""

from pathlib import Path

import pytest
from benchmarks.ship_weights import ship_run

from saccade.runs import RunFolder
from saccade.train import train
from tests.data.pictures import picture, save, truncate
from tests.train.tiny_runs import tiny


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of which two test and two validation images could not be read."""
    for number, name in enumerate(("cat", "dog")):
        for part, count in (("train", 24), ("val", 20), ("test", 8)):
            for i in range(count):
                shift = {"train": 0, "val": 30, "test": 60}[part] + 100 * number
                save(picture(shift + i, 8, 8), tmp_path / "images" / part / name / f"{i}.png")
            if part != "train":
                truncate(tmp_path / "images" / part / name / "0.png")
    settings = ["data.name=folder", "data.image_size=8", f"data.root={tmp_path / 'images'}"]
    settings += ["data.on_bad_image=skip", "data.num_train=null", "data.num_test=null"]
    train(tiny(*settings, "train.epochs=1"), tmp_path / "run", quiet=True)
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("test_again", [True, False])
def test_skipped_images_are_not_counted_as_right(
    run: RunFolder, test_again: bool, tmp_path: Path
) -> None:
    summary = run.summary()
    assert (summary["test_count"], summary["test_skipped"]) == (14, 2)
    record = ship_run(run, tmp_path / "shipped", max_error=0.99, test_again=test_again)
    right = round(summary["test_accuracy"] * 14)
    assert record["result"]["count"] == 14
    assert record["result"]["accuracy"] == pytest.approx(right / 14, abs=0.08)
    assert record["unsure"]["count"] == 38
    assert record["unsure"]["test_accepted"] <= 14
