"""Texts of a folder in a run: which are counted, and what a run says when the folder changes."""

import json
from pathlib import Path

import pytest

from saccade.config import Config, DataConfig
from saccade.data import load_splits
from saccade.data.text_folder import read_text_bytes
from saccade.errors import DataError
from saccade.report import write_report
from saccade.runs import Predictions, RunFolder
from saccade.train import train
from saccade.train.inference import data_to_evaluate, evaluate_run
from saccade.train.run_data import load_run_data, record_run_split
from tests.data.test_text_folder import write_texts
from tests.train.test_sequence_runs import config

SKIP = ("data.on_bad_image=skip", "data.max_bad_images=10")


def asked(root: Path, *overrides: str) -> Config:
    return config(f"data.root={root}", "train.epochs=1", *overrides)


def names_of(run: RunFolder, part: str) -> list[str]:
    return list(getattr(load_run_data(run), part).files.names)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "reviews", count=30)


@pytest.fixture
def run(texts: Path, tmp_path: Path) -> RunFolder:
    train(asked(texts), tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_unreadable_test_texts_are_left_out_and_counted(texts: Path, tmp_path: Path) -> None:
    splits = load_splits(asked(texts).data)
    bad = [*splits.test.files.paths[:2], splits.train.files.paths[0]]
    for path in bad:
        Path(path).write_bytes(b"no\0text")
    summary = train(asked(texts, *SKIP), tmp_path / "run")
    assert summary["test_skipped"] == 2
    assert summary["test_count"] == len(splits.test) - 2
    counts = {part: found["count"] for part, found in summary["skipped_images"].items()}
    assert counts == {"train": 1, "test": 2}
    stored = Predictions.of(RunFolder(tmp_path / "run").predictions())
    assert (stored.num_judged, stored.num_skipped) == (len(splits.test) - 2, 2)
    again = evaluate_run(tmp_path / "run", device="cpu")
    assert (again["count"], again["skipped"]) == (len(splits.test) - 2, 2)
    assert again["correct"] == int(stored.right.sum())
    done = write_report(tmp_path / "run", out=tmp_path / "report")
    assert done.findings.skipped == 2
    page = (tmp_path / "report" / "report.html").read_text()
    assert f"{len(splits.test) - 2} texts judged, 2 could not be read" in page
    assert "reviews" in page


def test_a_run_keeps_its_texts_when_the_folder_grows(
    run: RunFolder, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {part: names_of(run, part) for part in ("train", "val", "test")}
    for number in range(100, 120):
        (texts / "good" / f"{number}.txt").write_text(f"{number} was new and fine")
    accuracy = json.loads((run.path / "summary.json").read_text())["test_accuracy"]
    assert evaluate_run(run, device="cpu")["accuracy"] == accuracy
    assert "20 text(s) are new since training and are not used" in caplog.text
    assert {part: names_of(run, part) for part in before} == before


def test_growth_moves_no_text_to_another_split(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "many", count=200)
    before = load_splits(asked(texts).data)
    (texts / "good" / "zz.txt").write_text("one more text")
    after = load_splits(asked(texts).data)
    for part in ("train", "val", "test"):
        old, new = (set(getattr(splits, part).files.names) for splits in (before, after))
        assert old <= new


def test_changed_and_missing_test_texts_are_refused(run: RunFolder, texts: Path) -> None:
    first, second = names_of(run, "test")[:2]
    (texts / first).write_text("another text")
    with pytest.raises(DataError, match=r"1 of \d+ test texts changed"):
        evaluate_run(run, device="cpu")
    (texts / second).unlink()
    with pytest.raises(DataError, match=r"1 of \d+ test texts gone"):
        evaluate_run(run, device="cpu")


def test_other_texts_are_evaluated_and_training_texts_refused(
    run: RunFolder, tmp_path: Path
) -> None:
    other = write_texts(tmp_path / "other", ("train", "test"), 8)
    data = data_to_evaluate(run, name="text_folder", root=other)
    assert evaluate_run(run, device="cpu", data=data)["count"] == 16
    source = load_run_data(run).train.files.paths[0]
    (other / "test" / "good" / "0.txt").write_bytes(Path(source).read_bytes())
    with pytest.raises(DataError, match="1 of 16 test texts were trained on"):
        evaluate_run(run, device="cpu", data=data)


def test_a_run_without_names_of_its_texts_is_loaded_as_it_was(
    run: RunFolder, texts: Path, tmp_path: Path
) -> None:
    old = RunFolder(tmp_path / "old")
    old.path.mkdir()
    for name in ("config.yaml", "dataset.json"):
        (old.path / name).write_bytes((run.path / name).read_bytes())
    older = load_splits(asked(texts).data, by_position=True)
    record_run_split(old, older)
    found = load_run_data(old)
    for part in ("train", "val", "test"):
        assert getattr(found, part).images.equal(getattr(older, part).images)


def test_a_text_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="larger than 269,484,032 bytes"):
        read_text_bytes(path)


def test_a_folder_of_unreadable_texts_is_refused(texts: Path) -> None:
    for path in texts.rglob("*.txt"):
        path.write_bytes(b"\0")
    data = DataConfig(name="text_folder", root=texts, on_bad_image="skip", max_bad_images=100)
    with pytest.raises(DataError, match="too few to hold out test texts"):
        load_splits(data)
