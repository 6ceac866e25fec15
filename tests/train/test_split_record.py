"""A run keeps its split when images are added; missing or changed images are refused."""

import json
import logging
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from saccade.config import Config, DataConfig, dump_config
from saccade.data.split_record import PARTS, SplitRecord
from saccade.errors import ConfigError, DataError, Preempted
from saccade.explain.data_pictures import data_pictures, predictions_of
from saccade.explain.images import Album
from saccade.runs import SPLIT, RunFolder
from saccade.study import compare
from saccade.study.comparison import make_plan
from saccade.train import train
from saccade.train.build import read_data_description
from saccade.train.inference import evaluate_run
from saccade.train.run_data import load_run_data
from tests.data.pictures import digits_folder
from tests.train.moments import signal_at
from tests.train.tiny_runs import tiny, update_manifest

OLD = Path(__file__).parent / "run_split_by_position.tar.gz"
"""A preempted run on `digits_folder(images, 0, 36)` of an older saccade, without a record."""


def on_digits(root: Path, *overrides: str) -> Config:
    data = [f"data.root={root}", "data.name=folder", "data.image_size=8", "data.num_train=null"]
    length = ["data.num_test=null", "train.epochs=2", "train.batch_size=32"]
    return tiny(*data, *length, "train.ema_decay=null", *overrides)


def record_of(run: Path) -> SplitRecord:
    return SplitRecord.decode((run / SPLIT).read_bytes(), "record")


def measured(run: Path, data: Path | None = None, split: str = "test") -> dict[str, object]:
    config = RunFolder(run).config().data
    moved = config.model_copy(update={"root": data}) if data else None
    found = evaluate_run(run, data=moved, device="cpu", split=split)
    return {key: found[key] for key in ("count", "correct", "loss")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `images` and a finished `run` on them."""
    folder = tmp_path_factory.mktemp("trained")
    digits_folder(folder / "images", 5, 20)
    train(on_digits(folder / "images"), folder / "run", quiet=True)
    return folder


@pytest.fixture
def own(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained` to change."""
    shutil.copytree(trained, tmp_path / "own")
    run = RunFolder(tmp_path / "own" / "run")
    run.note_data_root(tmp_path / "own" / "images")
    update_manifest(run)
    return tmp_path / "own"


def test_the_record_names_every_image_once(trained: Path) -> None:
    record = record_of(trained / "run")
    names = [name for part in PARTS for name in record.parts[part].names]
    files = (trained / "images").rglob("*.png")
    assert sorted(names) == sorted(str(file.relative_to(trained / "images")) for file in files)
    assert RunFolder(trained / "run").summary()["test_count"] == record.parts["test"].count
    hashes = {digest for part in PARTS for digest in record.parts[part].hashes}
    assert len(hashes) == len(names)
    assert {len(digest) for digest in hashes} == {16}


def test_images_that_are_added_change_no_result(
    own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {split: measured(own / "run", split=split) for split in PARTS}
    digits_folder(own / "images", 0, 5)
    with caplog.at_level(logging.WARNING):
        assert {split: measured(own / "run", split=split) for split in PARTS} == before
    told = "50 image(s) are new since training and are not used ('digit-0/000.png', "
    assert all(record.getMessage().startswith(told) for record in caplog.records)
    assert len(caplog.records) == 3


@pytest.mark.parametrize(("what", "verb"), [("delete", "gone"), ("replace", "changed")])
@pytest.mark.parametrize("part", ["train", "test"])
def test_an_image_that_is_missing_or_changed_is_refused_where_it_is_used(
    own: Path, what: str, verb: str, part: str
) -> None:
    before = measured(own / "run")
    record = record_of(own / "run").parts
    name = record[part].names[0]
    if what == "delete":
        (own / "images" / name).unlink()
    else:  # by an image that the run was trained on
        shutil.copyfile(own / "images" / record["train"].names[1], own / "images" / name)
    words = {"train": "training", "test": "test"}[part]
    told = rf"1 of {record[part].count} {words} images {verb} \('{name}'\)"
    with pytest.raises(DataError, match=told):
        measured(own / "run", split=part)
    if part == "train":
        assert measured(own / "run") == before
    with pytest.raises(DataError, match=told):
        next(data_pictures(RunFolder(own / "run")))
    album = Album(RunFolder(own / "run"), read_data_description(RunFolder(own / "run")))
    with pytest.raises(DataError, match=rf"1 of|{part}:0, '{name}', has changed since"):
        album.open(f"{part}:0")


def test_image_positions_do_not_change_when_the_folder_grows(own: Path) -> None:
    names = record_of(own / "run").parts["test"].names
    digits_folder(own / "images", 0, 5)
    run = RunFolder(own / "run")
    files = Album(run, read_data_description(run)).part("test").files
    assert files is not None
    assert tuple(files.names) == names
    splits = load_run_data(run)
    predictions = predictions_of(run, splits.test, splits.info.num_classes)
    assert predictions.num_judged == len(names)


def test_a_resumed_run_keeps_its_own_images(trained: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trained / "images", tmp_path / "images")
    out = tmp_path / "run"
    with pytest.raises(Preempted), signal_at(2, signal.SIGTERM):
        train(on_digits(root), out, quiet=True)
    record = (out / SPLIT).read_bytes()
    digits_folder(root, 0, 5)
    train(on_digits(root), out, quiet=True, resume=True)
    assert final_state_without_average(out) == final_state_without_average(trained / "run")
    assert (out / SPLIT).read_bytes() == record == (trained / "run" / SPLIT).read_bytes()


def final_state_without_average(out: Path) -> dict[str, bytes]:
    last = RunFolder(out).checkpoints()[-1].path
    return {f"{n}": (last / f"{n}.safetensors").read_bytes() for n in ("model", "optimizer")}


@pytest.mark.parametrize("part", PARTS)
def test_a_run_with_a_missing_training_image_is_not_resumed(
    trained: Path, tmp_path: Path, part: str
) -> None:
    root = shutil.copytree(trained / "images", tmp_path / "images")
    with pytest.raises(Preempted), signal_at(2, signal.SIGTERM):
        train(on_digits(root), tmp_path / "run", quiet=True)
    (root / record_of(tmp_path / "run").parts[part].names[0]).unlink()
    with pytest.raises(DataError, match="restore them as they were, or train a new run"):
        train(on_digits(root), tmp_path / "run", quiet=True, resume=True)


def test_data_that_moved_and_grew_is_recognized(own: Path, tmp_path: Path) -> None:
    before = measured(own / "run")
    moved = digits_folder((own / "images").rename(tmp_path / "elsewhere"), 0, 5)
    assert measured(own / "run", moved) == before


def test_other_data_with_training_images_of_the_run_is_refused(own: Path, tmp_path: Path) -> None:
    other = digits_folder(tmp_path / "other" / "train", 30, 32)
    digits_folder(tmp_path / "other" / "test", 40, 43)
    assert measured(own / "run", other.parent)["count"] == 30
    name = record_of(own / "run").parts["train"].names[0]
    shutil.copyfile(own / "images" / name, other.parent / "test" / "digit-3" / "x.png")
    with pytest.raises(DataError, match=r"^1 of 31 test images were trained on by .*digit-3/x.png"):
        measured(own / "run", other.parent)


def test_test_images_that_are_copies_of_training_images_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "test"):
        digits_folder(tmp_path / "images" / part, 0, 4)
    digits_folder(tmp_path / "images" / "test", 20, 22)
    train(on_digits(tmp_path / "images", "train.epochs=1", "train.batch_size=16"), tmp_path / "run")
    assert "40 of 60 test images are copies of training" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_damaged_record_is_named(own: Path) -> None:
    whole = (own / "run" / SPLIT).read_bytes()
    for content in (b"no gzip", whole[:-9], b"\x1f\x8b" + whole[2:40]):
        (own / "run" / SPLIT).write_bytes(content)
        update_manifest(RunFolder(own / "run"))
        with pytest.raises(ConfigError, match=r"split\.json\.gz' is not the record of a split"):
            measured(own / "run")


def test_changed_images_of_a_data_set_without_files_are_refused(tmp_path: Path) -> None:
    train(tiny("train.epochs=1"), tmp_path / "run", quiet=True)
    run = RunFolder(tmp_path / "run")
    parts = record_of(run.path).parts
    assert (parts["train"].count, parts["val"].count, parts["test"].count) == (180, 20, 61)
    measured(run.path)
    other = SplitRecord({**parts, "test": parts["val"]})
    run.write_split(other.encode())
    update_manifest(run)
    with pytest.raises(DataError, match=r"the test images of digits are not those .*61 now, 20 th"):
        measured(run.path)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with `images`, a `run` on them that has no record, and `expected.json`."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    digits_folder(tmp_path / "images", 0, 36)
    RunFolder(tmp_path / "run").note_data_root(tmp_path / "images")
    return tmp_path


def test_an_old_run_is_split_by_position_as_it_was(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    assert not (old / "run" / SPLIT).exists()
    assert measured(old / "run") == pytest.approx(expected["preempted"], rel=1e-5)
    train(RunFolder(old / "run").config(), old / "run", resume=True, quiet=True)
    assert measured(old / "run") == pytest.approx(expected["finished"], rel=1e-5)
    assert sum(part.count for part in record_of(old / "run").parts.values()) == 360
    digits_folder(old / "images", 36, 37)  # from here on there is a record
    assert measured(old / "run") == pytest.approx(expected["finished"], rel=1e-5)


def test_an_old_run_is_refused_on_a_folder_that_changed(old: Path) -> None:
    before = {path: path.read_bytes() for path in (old / "run").rglob("*") if path.is_file()}
    digits_folder(old / "images", 36, 37)
    with pytest.raises(DataError, match="this older run has no record of its split"):
        measured(old / "run")
    with pytest.raises(DataError, match="restore the folder as it was, or train a new run"):
        train(RunFolder(old / "run").config(), old / "run", resume=True, quiet=True)
    assert {p: p.read_bytes() for p in (old / "run").rglob("*") if p.is_file()} == before


def test_an_old_run_warns_of_other_images(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = digits_folder(old / "other", 50, 60)
    with caplog.at_level(logging.WARNING):
        assert measured(old / "run", other)["count"] == 20
    assert "may include images that it was trained on" in caplog.text
    config = DataConfig(name="folder", root=old / "absent", image_size=8)
    with pytest.raises(DataError, match="no such folder"):
        evaluate_run(old / "run", data=config, device="cpu")


def test_images_that_a_run_left_out_are_not_reported_as_new(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = ["data.num_train=60", "data.num_test=20", "train.epochs=1"]
    for number, changes in enumerate((few, ["data.folds=3", "data.fold=1", "train.epochs=1"])):
        out = tmp_path / f"run-{number}"
        train(on_digits(trained / "images", *changes), out, quiet=True)
        record = record_of(out)
        assert sum(part.count for part in record.parts.values()) + len(record.unused) == 150
        with caplog.at_level(logging.WARNING):
            assert measured(out)["count"] == record.parts["test"].count
        assert not caplog.records


def test_a_comparison_does_not_continue_with_other_images(tmp_path: Path) -> None:
    root = digits_folder(tmp_path / "images", 5, 12)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(dump_config(on_digits(root, "train.epochs=1", "train.batch_size=16")))
    plan = make_plan(str(recipe), attentions=["softmax", "taylor"], seeds=1)
    more = make_plan(str(recipe), attentions=["softmax", "taylor"], seeds=2)
    compare(plan, tmp_path / "study", quiet=True)
    digits_folder(root, 0, 1)
    with pytest.raises(DataError, match=r"10 new \('digit-0/000.png', .*restore the folder"):
        compare(more, tmp_path / "study", resume=True, quiet=True)
    for path in root.rglob("000.png"):
        path.unlink()
    assert compare(more, tmp_path / "study", resume=True, quiet=True)["rows"][0]["runs"] == 2
