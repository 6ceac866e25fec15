"""Hugging Face data sets, with and without the datasets package installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.errors import ConfigError, DataError
from saccade.explain.data_pictures import predictions_of
from saccade.runs import Predictions, RunFolder
from saccade.train import train
from saccade.train.run_data import load_run_data
from tests.data.pictures import good_folder, truncate
from tests.data.shards import digit_images, digits_on_the_hub, write_shards
from tests.train.tiny_runs import tiny


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load_splits(DataConfig(name="hf:uoft-cs/cifar10"))


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.name must be hf:<name>"):
        load_splits(DataConfig(name="hf:"))


def test_a_set_of_loose_files_is_kept_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train", count=6)
    good_folder(tmp_path / "test", count=3)
    splits = load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=16, num_test=4))
    assert splits.info.class_names == ("cat", "dog")
    assert splits.train.images is not None
    assert splits.train.images.shape[1:] == (3, 16, 16)
    assert len(splits.train) + len(splits.val) == 12
    assert len(splits.test) == 4


@pytest.mark.parametrize(
    "path", ["./nope", "../nope", "/nope/sets", "~/nope", "my/own/set", "./nope@v2"]
)
def test_a_missing_path_is_not_requested_from_the_hub(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as error:
        load_splits(DataConfig(name=f"hf:{path}"))
    assert str(error.value) == f"data.name='hf:{path}': no such folder"


@pytest.mark.parametrize("name", ["cifar10", "owner/set", "owner/set@refs/convert/parquet"])
def test_names_of_the_hub_are_not_taken_for_paths(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load_splits(DataConfig(name=f"hf:{name}"))


def test_a_folder_without_data_is_a_one_line_error(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    with pytest.raises(DataError, match="cannot be loaded") as error:
        load_splits(DataConfig(name=f"hf:{tmp_path}"))
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_streamed_have_to_fit_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train")
    with pytest.raises(DataError, match="only parquet files can be streamed"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=16, resident_gib=0))


def assert_error_or_skipped(
    config: DataConfig, fault: str, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Check both policies on a set with one bad image and `left` good ones."""
    with pytest.raises(DataError, match=fault):
        load_splits(config)
    splits = load_splits(config.model_copy(update={"on_bad_image": "skip"}))
    assert len(splits.train) + len(splits.test) == left
    [record] = caplog.records
    assert record.getMessage().startswith("skipped bad image ")


def test_a_bad_file_is_an_error_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train")
    truncate(tmp_path / "train" / "cat" / "3.png")
    config = DataConfig(name=f"hf:{tmp_path}", image_size=16, val_fraction=0)
    fault = r"bad image .*cat/3\.png: .*truncated"
    assert_error_or_skipped(config, fault, 11, caplog)


def test_a_bad_parquet_image_is_an_error_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    images, labels = digit_images(0, 60)
    images[7] = b"no picture at all"
    write_shards(tmp_path, "train", images, labels, files=1, group=20)
    config = DataConfig(name=f"hf:{tmp_path}", image_size=8, val_fraction=0)
    assert_error_or_skipped(config, r"bad image .* row 7: not an image", 59, caplog)


def relabel(path: Path, label: int) -> None:
    """Give all images of a parquet file a label that its header may not know."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    column = table.schema.get_field_index("label")
    labels = pa.array([label] * len(table), pa.int64())
    pq.write_table(table.set_column(column, table.schema.field("label"), labels), path)


@pytest.mark.parametrize("resident_gib", [0.0, 1.0])
@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_out_of_range_are_refused(tmp_path: Path, part: str, resident_gib: float) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    digits_on_the_hub(tmp_path)
    relabel(next(tmp_path.glob(f"{part}-*")), 10)
    with pytest.raises(DataError, match=r"labels must be from 0 to 9 for 10 classes, got 10$"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=8, resident_gib=resident_gib))


def test_a_class_without_training_images_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    images, labels = digit_images(0, 60)
    write_shards(tmp_path, "train", images, [min(x, 8) for x in labels], files=1, group=20)
    with pytest.raises(DataError, match=r"class '9' has no training images$"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=8))


def test_a_part_of_a_set_may_lack_a_class(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train", ("cat", "dog", "eel"))
    config = DataConfig(name=f"hf:{tmp_path}", image_size=8, num_train=2, val_fraction=0)
    with pytest.raises(
        DataError, match="2 images in 3 classes are too few to hold out test images"
    ):
        load_splits(config)
    good_folder(tmp_path / "test", ("cat", "dog", "eel"))
    assert len(load_splits(config).train) == 2


def test_one_class_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    monkeypatch.setattr("tests.data.shards.NAMES", ["0"])
    images, labels = digit_images(0, 20)
    write_shards(tmp_path, "train", images, [0 for _ in labels], files=1, group=20)
    with pytest.raises(DataError, match=r"must have at least two classes, got only the class '0'$"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=8))


def test_a_part_that_is_not_used_is_not_read(tmp_path: Path) -> None:
    """Where there is a test split, validation is neither fetched nor decoded."""
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    for part in ("train", "validation", "test"):
        good_folder(tmp_path / "files" / part)
    for path in (tmp_path / "files" / "validation").rglob("*.*"):
        truncate(path)
    loaded = load_splits(DataConfig(name=f"hf:{tmp_path / 'files'}", image_size=8))
    assert len(loaded.test) == 12
    images, labels = digit_images(0, 60)
    for part in ("train", "validation", "test"):
        write_shards(tmp_path / "shards", part, images, labels, files=1, group=20)
    relabel(next((tmp_path / "shards").glob("validation-*")), 99)
    damaged = next((tmp_path / "shards").glob("validation-*"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert len(load_splits(DataConfig(name=f"hf:{tmp_path / 'shards'}", image_size=8)).test) == 60


def test_images_that_do_not_come_into_memory_are_counted_as_left_out(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    for part, start in (("train", 0), ("test", 60)):
        images, labels = digit_images(start, start + 60)
        images[7] = b"no picture at all"
        write_shards(tmp_path / "set", part, images, labels, files=1, group=20)
    hub = [f"data.name=hf:{tmp_path / 'set'}", "data.image_size=8", "data.on_bad_image=skip"]
    sizes = ["data.num_train=null", "data.num_test=null", "train.epochs=1"]
    run = RunFolder(tmp_path / "run")
    summary = train(tiny(*hub, *sizes), run.path, quiet=True)
    assert (summary["test_count"], summary["test_skipped"]) == (59, 1)
    counts = {part: found["count"] for part, found in summary["skipped_images"].items()}
    assert counts == {"train": 1, "test": 1}
    stored = Predictions.of(run.predictions())
    assert (stored.num_judged, stored.num_skipped) == (59, 1)
    test = load_run_data(run).test
    assert len(predictions_of(run, test, 10).target) == 60
    assert stored.target[:59].tolist() == test.labels.tolist()
