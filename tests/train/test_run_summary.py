"""Speed, peak memory and skipped images in the summary of a run."""

import json
import time
from pathlib import Path

import pytest
import torch

from saccade.config import dump_config
from saccade.runs import RunFolder
from saccade.train import run_summary as memory
from saccade.train import train
from saccade.train.run_summary import measured_speed, median_speed
from tests.cli.conftest import Saccade, saccade
from tests.data.pictures import good_folder, truncate
from tests.train.tiny_runs import tiny

__all__ = ["saccade"]

SMALL = ["data.num_train=60", "train.batch_size=512", "train.epochs=3"]


def test_speed_counts_only_the_images_of_a_small_training_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are 54 training images, so a step of 512 has only 54."""
    summary = train(tiny(*SMALL, "run.log_every_steps=1"), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics("epoch")
    for row in rows:
        assert row["img_per_s"] == pytest.approx(54 / row["seconds"], rel=2e-5)
    assert summary["img_per_s"] * summary["seconds_per_epoch"] == pytest.approx(54, rel=1e-5)
    told = capsys.readouterr().err
    assert told.count("train.batch_size=512 is more than the 54 training images") == 1


@pytest.mark.parametrize("seconds", [1e-6, 0.00495, 60.0, 40_000.0])
def test_speed_and_duration_agree_at_every_speed(seconds: float) -> None:
    """Speeds from 0.001 to 54 million images a second: none is rounded to 0."""
    row = measured_speed(54, seconds)
    assert row["seconds"] == pytest.approx(seconds, rel=1e-5)
    speed = median_speed([row] * 3, 54)
    assert speed["seconds_per_epoch"] == pytest.approx(seconds, rel=1e-5)
    assert speed["img_per_s"] == pytest.approx(54 / seconds, rel=1e-5)


def test_no_warning_for_a_full_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 180 images in batches of 24 the last 12 of an epoch are dropped, and not counted."""
    begun = time.perf_counter()
    summary = train(tiny("train.epochs=2"), tmp_path / "run")
    assert summary["img_per_s"] * summary["seconds_per_epoch"] == pytest.approx(168, rel=1e-5)
    assert summary["img_per_s"] > 168 / (time.perf_counter() - begun)
    assert "train.batch_size" not in capsys.readouterr().err


def test_a_search_warns_of_a_batch_larger_than_the_training_set(
    tmp_path: Path, saccade: Saccade
) -> None:
    (tmp_path / "tiny.yaml").write_text(dump_config(tiny(*SMALL, "train.epochs=1")))
    words = ["search.optim.lr=[0.001, 0.01]", "tune.sampler=grid"]
    code, _, err = saccade(
        "tune", tmp_path / "tiny.yaml", *words, "--trials", 2, "--out", tmp_path / "search"
    )
    assert code == 0, err
    assert err.count("is more than the 54 training images") == 1


def test_peak_memory_shared_marks_memory_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_devices_used", set())  # as in a fresh process
    summaries = [train(tiny("train.epochs=1"), tmp_path / str(n), quiet=True) for n in (0, 1)]
    assert [summary["peak_memory_shared"] for summary in summaries] == [False, True]
    assert all(summary["peak_memory_mib"] > 0 for summary in summaries)
    gpu = torch.device("cuda")  # torch counts the tensors of a run there
    assert [memory.holds_earlier_runs(gpu) for _ in range(2)] == [False, False]


def test_a_summary_names_skipped_images(
    tmp_path: Path, saccade: Saccade, caplog: pytest.LogCaptureFixture
) -> None:
    data = good_folder(tmp_path / "my-images", count=20)
    bad = [truncate(path) for path in sorted(data.glob("*/*.png"))[:3]]
    words = ["data.name=folder", f"data.root={data}", "data.image_size=8", "train.epochs=1"]
    words += ["data.on_bad_image=skip", "data.num_train=null", "data.num_test=null"]
    (tmp_path / "tiny.yaml").write_text(dump_config(tiny(*words, "train.batch_size=8")))
    code, out, err = saccade("train", tmp_path / "tiny.yaml", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["dataset"] == "my-images"
    found = summary["skipped_images"]
    assert found
    faults = [fault for part in found.values() for fault in part["faults"]]
    assert sum(part["count"] for part in found.values()) == len(faults) <= len(bad)
    assert all(any(str(path) in fault for path in bad) for fault in faults)
    test = summary["test_skipped"]
    assert test == found.get("test", {"count": 0})["count"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)) == len(bad)
