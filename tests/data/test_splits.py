import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from saccade.config import DataConfig
from saccade.data import DATASETS, list_datasets, load_splits, stratified_split
from saccade.data.held_out import read_digits
from saccade.data.normalization import channel_statistics
from saccade.data.sources import SOURCES
from saccade.data.stratify import stratified_fold, stratified_subset
from saccade.errors import ConfigError, DataError, UnknownNameError
from tests.data.pictures import good_folder

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(torch.tensor)


@given(labels=LABELS, fraction=st.floats(0, 0.9), seed=st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_a_split_is_a_partition_that_keeps_proportions(
    labels: torch.Tensor, fraction: float, seed: int
) -> None:
    kept, held = stratified_split(labels, fraction, seed)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    for label in labels.unique():
        size = int((labels == label).sum())
        out = int((labels[held] == label).sum())
        assert out < size
        assert abs(out - size * fraction) <= 1


def test_a_split_depends_on_its_seed_alone() -> None:
    labels = torch.arange(1000) % 10
    assert torch.equal(stratified_split(labels, 0.1, 5)[1], stratified_split(labels, 0.1, 5)[1])
    assert not torch.equal(stratified_split(labels, 0.1, 5)[1], stratified_split(labels, 0.1, 6)[1])


def test_a_fraction_of_one_is_refused() -> None:
    with pytest.raises(DataError, match=r"fraction must be in \[0, 1\), got 1\.0"):
        stratified_split(torch.zeros(3, dtype=torch.int64), 1.0, 0)


def test_a_subset_has_the_size_asked_for() -> None:
    labels = torch.arange(1000) % 7
    assert len(stratified_subset(labels, 123, 0)) == 123
    assert len(stratified_subset(labels, 5000, 0)) == 1000
    assert [len(stratified_subset(labels, n, 0)) for n in (990, 995, 999)] == [990, 995, 999]


def test_statistics_are_those_of_float64() -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2500, 3, 4, 4), generator=generator, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_a_constant_channel_has_a_positive_std() -> None:
    assert channel_statistics(torch.full((4, 1, 2, 2), 9, dtype=torch.uint8))[1][0] > 0


def test_digits_load_without_any_file() -> None:
    splits = load_splits(DataConfig())
    assert (len(splits.train), len(splits.val), len(splits.test)) == (1294, 144, 359)
    assert splits.info.image_size == (8, 8)
    assert splits.info.num_classes == 10
    assert splits.train.images is not None
    assert splits.train.images.dtype == torch.uint8
    assert int(splits.train.images.max()) == 255


def test_the_file_of_digits_holds_what_scikit_learn_loads() -> None:
    images, labels = read_digits()
    values, expected_labels = load_digits(return_X_y=True)
    assert (images.dtype, images.shape, labels.dtype) == (np.uint8, (1797, 1, 8, 8), np.int64)
    assert (images.reshape(1797, 64) == (values * (255 / 16)).round()).all()
    assert (labels == expected_labels).all()


def test_the_test_set_of_digits_does_not_follow_the_split_seed() -> None:
    first, second = (load_splits(DataConfig(split_seed=seed)) for seed in (0, 1))
    assert torch.equal(first.test.labels, second.test.labels)
    assert not torch.equal(first.val.labels, second.val.labels)


def test_statistics_leave_validation_out() -> None:
    some = load_splits(DataConfig(val_fraction=0.5))
    every = load_splits(DataConfig(val_fraction=0.0))
    assert len(every.val) == 0
    assert some.info.mean != every.info.mean


@pytest.mark.parametrize("count", [3, 10])
def test_too_few_images_to_validate_on_are_refused(count: int) -> None:
    problem = f"data.val_fraction=0.1: {count} training images in {count} classes are too few"
    with pytest.raises(DataError, match=re.escape(problem)):
        load_splits(DataConfig(num_train=count))
    assert len(load_splits(DataConfig(num_train=count, val_fraction=0)).train) == count
    assert len(load_splits(DataConfig(num_train=20)).val) == 2


def test_too_few_image_files_to_validate_on_are_refused(tmp_path: Path) -> None:
    good_folder(tmp_path / "train", count=1)
    good_folder(tmp_path / "test", count=1)
    config = DataConfig(name="folder", root=tmp_path, image_size=8, val_fraction=0.5)
    with pytest.raises(DataError, match=r"data.val_fraction=0 for no validation"):
        load_splits(config)
    assert not len(load_splits(config.model_copy(update={"val_fraction": 0})).val)


def test_an_unknown_data_set_suggests_similar_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        load_splits(DataConfig(name="cifar_10"))


def test_a_set_that_is_not_cached_says_how_to_get_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    with pytest.raises(DataError, match="saccade data fetch cifar10"):
        load_splits(DataConfig(name="cifar10"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DataConfig(image_size=32), "data.image_size must be unset for digits, whose images are 8"),
        (DataConfig(root=Path("x")), "data.root must be unset for digits, which is not read from"),
        (DataConfig(name="shapes", root=Path("x")), "data.root must be unset for shapes"),
    ],
)
def test_a_setting_without_effect_is_refused(config: DataConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_splits(config)


def test_the_table_lists_every_set() -> None:
    assert set(list_datasets()) == {
        *("cifar10", "cifar100", "digits", "fashion_mnist", "folder", "mnist", "shapes"),
        *("listops_lra", "listops_taylorshift", "pathfinder", "recall"),
        *("cifar10_pixel", "text_folder"),
    }
    assert DATASETS.names() == list_datasets()
    assert set(SOURCES) < set(DATASETS)


@given(labels=LABELS, folds=st.integers(2, 6), seed=st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_folds_are_a_partition_that_keeps_proportions(
    labels: torch.Tensor, folds: int, seed: int
) -> None:
    folds = min(folds, len(labels))
    parts = [stratified_fold(labels, folds, fold, seed) for fold in range(folds)]
    assert torch.cat([held for _, held in parts]).sort().values.tolist() == [*range(len(labels))]
    for kept, held in parts:
        assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
        assert abs(len(held) - len(labels) / folds) < 1
        for label in labels.unique():
            inside, size = (int((x == label).sum()) for x in (labels[held], labels))
            assert abs(inside - size / folds) < 1


def test_a_fold_replaces_the_test_set() -> None:
    whole = load_splits(DataConfig(val_fraction=0))
    test_images = {image.numpy().tobytes() for image in whole.test.images}
    seen: list[bytes] = []
    for fold in range(5):
        splits = load_splits(DataConfig(folds=5, fold=fold))
        assert len(splits.train) + len(splits.val) + len(splits.test) == len(whole.train)
        seen += [image.numpy().tobytes() for image in splits.test.images]
    assert sorted(seen) == sorted(image.numpy().tobytes() for image in whole.train.images)
    assert len(test_images & set(seen)) < 5  # digits has a few twins


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"folds": 5}, "give both or neither"),
        ({"fold": 0}, "give both or neither"),
        ({"folds": 5, "fold": 5}, "fold must be at least 0 and below folds=5, got 5"),
    ],
)
def test_incomplete_or_invalid_folds_are_refused(values: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DataConfig(**values)


def test_more_folds_than_images_are_refused() -> None:
    with pytest.raises(DataError, match=r"data\.folds must be at most 20, .*, got 29"):
        load_splits(DataConfig(num_train=20, folds=29, fold=0))
