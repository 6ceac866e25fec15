"""Data with other classes or image sizes than a run was trained on is refused."""

import json
import signal
from pathlib import Path

import pytest

from saccade.config import Config, DataConfig, with_overrides
from saccade.data.shapes import SHAPES
from saccade.errors import ConfigError, DataError, Preempted
from saccade.explain.data_pictures import data_pictures
from saccade.explain.images import Album
from saccade.runs import RunFolder
from saccade.train import train
from saccade.train.build import read_data_description
from saccade.train.inference import evaluate_run
from tests.data.pictures import good_folder
from tests.train.moments import signal_at
from tests.train.tiny_runs import tiny

SIZE = 16


def on_folder(root: Path, *overrides: str) -> Config:
    data = [f"data.root={root}", "data.name=folder", f"data.image_size={SIZE}"]
    free = ["data.num_train=null", "data.num_test=null", "data.val_fraction=0.25"]
    return tiny(*data, *free, "train.batch_size=6", "train.epochs=2", *overrides)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return good_folder(tmp_path / "own", count=10)


@pytest.fixture
def stopped(own: Path, tmp_path: Path) -> Path:
    """A run on `own` that was preempted."""
    out = tmp_path / "run"
    with pytest.raises(Preempted), signal_at(2, signal.SIGTERM):
        train(on_folder(own), out, quiet=True)
    return out


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on drawn shapes."""
    out = tmp_path_factory.mktemp("shapes") / "run"
    few = ["data.num_train=64", "data.num_test=16", "train.epochs=1"]
    train(tiny("data.name=shapes", f"data.image_size={SIZE}", *few), out, quiet=True)
    return out


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (("dog", "zebra"), "no class 'cat', a new class 'zebra'"),
        (("cat", "dog", "eel"), "3 classes instead of 2, a new class 'eel'"),
        (
            tuple("abcde"),
            "5 classes instead of 2, no class 'cat', 'dog', a new class 'a', 'b', 'c'",
        ),
    ],
)
def test_resume_with_other_classes_is_refused_and_changes_nothing(
    stopped: Path, tmp_path: Path, classes: tuple[str, ...], told: str
) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    other = good_folder(tmp_path / "other", classes, count=10)
    with pytest.raises(DataError, match=f"'{stopped}' was trained on: {told}"):
        train(on_folder(other), stopped, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_resume_accepts_data_that_moved(own: Path, stopped: Path, tmp_path: Path) -> None:
    moved = own.rename(tmp_path / "moved")
    assert train(on_folder(moved), stopped, resume=True, quiet=True)["epochs"] == 2


def test_a_renamed_class_is_refused_by_every_command(own: Path, stopped: Path) -> None:
    run = RunFolder(stopped)
    album = Album(run, read_data_description(run))
    (own / "cat").rename(own / "zebra")
    told = "no class 'cat', a new class 'zebra'"
    with pytest.raises(DataError, match=told):
        evaluate_run(run, device="cpu")
    with pytest.raises(DataError, match=told):
        album.find(["test:0"])
    with pytest.raises(DataError, match=told):
        next(data_pictures(run))


def folder_data(root: Path, classes: tuple[str, ...], size: int = SIZE) -> DataConfig:
    pictures = good_folder(root, classes, 5, first=5000)
    return DataConfig(name="folder", root=pictures, image_size=size, workers=0)


def test_other_data_with_equal_classes_is_evaluated(stopped: Path, tmp_path: Path) -> None:
    other = folder_data(tmp_path / "other", ("cat", "dog"))
    result = evaluate_run(stopped, data=other, device="cpu")
    assert result["count"] == 2
    assert list(result["class_accuracy"]) == ["cat", "dog"]


def test_images_of_another_size_are_refused(stopped: Path, tmp_path: Path) -> None:
    smaller = folder_data(tmp_path / "other", ("cat", "dog"), size=8)
    with pytest.raises(DataError, match="images of 3 x 8 x 8 instead of 3 x 16 x 16"):
        evaluate_run(stopped, data=smaller, device="cpu")


def test_images_of_other_channels_are_refused(finished: Path, tmp_path: Path) -> None:
    colored = folder_data(tmp_path, tuple("0123456789"), size=8)
    with pytest.raises(DataError, match="images of 3 x 8 x 8 instead of 1 x 8 x 8"):
        evaluate_run(finished, data=colored, device="cpu")


def test_another_order_of_classes_is_refused(shaped: Path, tmp_path: Path) -> None:
    """The classes of a folder are sorted by name."""
    ordered = folder_data(tmp_path, SHAPES)
    first = min(SHAPES)
    with pytest.raises(DataError, match=f"class 0 is '{first}' instead of '{SHAPES[0]}'"):
        evaluate_run(shaped, data=ordered, device="cpu")


PATIENT = "train.early_stopping_patience=1"
PLATEAU = "optim.schedule=plateau"


@pytest.mark.parametrize("watching", [PATIENT, PLATEAU])
def test_a_validation_folder_can_be_watched(tmp_path: Path, watching: str) -> None:
    for part in ("train", "val", "test"):
        good_folder(tmp_path / "data" / part, count=4)
    config = on_folder(tmp_path / "data", "data.val_fraction=0", "optim.lr=1e-30")
    out = tmp_path / "run"
    summary = train(with_overrides(config, ["train.epochs=5", watching]), out, quiet=True)
    assert summary["val_accuracy_best"] is not None
    assert summary["epochs"] == (2 if watching == PATIENT else 5)


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "val"), (".",)])
def test_missing_validation_is_refused_before_a_folder_is_created(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        good_folder(tmp_path / "data" / part, count=5)
    config = on_folder(tmp_path / "data", "data.val_fraction=0", PATIENT)
    with pytest.raises(ConfigError, match=r"patience watches validation: .*no val/ beside a test/"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_invalid_dataset_json_is_named(stopped: Path, own: Path) -> None:
    (stopped / "dataset.json").write_text(json.dumps({"color": 1}))
    with pytest.raises(ConfigError, match=r"dataset\.json"):
        train(on_folder(own), stopped, resume=True, quiet=True)
