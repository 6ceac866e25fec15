"""Hugging Face data sets: with the package where it is installed, and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.errors import ConfigError, DataError
from tests.data.pictures import good_folder, truncate
from tests.data.shards import digit_images, digits_on_the_hub, write_shards


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        load_splits(DataConfig(name="hf:uoft-cs/cifar10"))


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="wants hf:<name>"):
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
def test_a_path_that_does_not_exist_is_not_asked_of_the_hub(
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


def test_a_folder_without_data_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    with pytest.raises(DataError, match="cannot be loaded") as error:
        load_splits(DataConfig(name=f"hf:{tmp_path}"))
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_streamed_have_to_fit_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train")
    with pytest.raises(DataError, match="only parquet files can be streamed"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=16, resident_gib=0))


def assert_named_or_passed_over(
    config: DataConfig, fault: str, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Hold a set with one bad image, and so many others, to either policy."""
    with pytest.raises(DataError, match=fault):
        load_splits(config)
    splits = load_splits(config.model_copy(update={"on_bad_image": "skip"}))
    assert len(splits.train) + len(splits.test) == left
    [record] = caplog.records
    assert record.getMessage().startswith("passed over bad image ")


def test_a_bad_file_is_named_or_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    good_folder(tmp_path / "train")
    truncate(tmp_path / "train" / "cat" / "3.png")
    config = DataConfig(name=f"hf:{tmp_path}", image_size=16, val_fraction=0)
    fault = r"bad image .*cat/3\.png: .*truncated"
    assert_named_or_passed_over(config, fault, 11, caplog)


def test_a_bad_image_of_a_parquet_file_is_named_or_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    images, labels = digit_images(0, 60)
    images[7] = b"no picture at all"
    write_shards(tmp_path, "train", images, labels, files=1, group=20)
    config = DataConfig(name=f"hf:{tmp_path}", image_size=8, val_fraction=0)
    assert_named_or_passed_over(config, r"bad image .* row 7: no image", 59, caplog)


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
def test_labels_of_no_class_are_refused(tmp_path: Path, part: str, resident_gib: float) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    digits_on_the_hub(tmp_path)
    relabel(next(tmp_path.glob(f"{part}-*")), 10)
    with pytest.raises(DataError, match=r"the label 10; accepted: 0 to 9, for 10 classes$"):
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
    with pytest.raises(DataError, match="2 images in 3 classes none is left to test on"):
        load_splits(config)
    good_folder(tmp_path / "test", ("cat", "dog", "eel"))
    assert len(load_splits(config).train) == 2


def test_one_class_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    monkeypatch.setattr("tests.data.shards.NAMES", ["0"])
    images, labels = digit_images(0, 20)
    write_shards(tmp_path, "train", images, [0 for _ in labels], files=1, group=20)
    with pytest.raises(DataError, match=r"only the class '0'; wants at least two classes$"):
        load_splits(DataConfig(name=f"hf:{tmp_path}", image_size=8))
