"""Splits by name: near the fraction asked for, and hardly moved by images that are added."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.config import DataConfig
from saccade.data import Splits, load_splits
from saccade.data.stratify import fold_by_name, hold_out_by_name, name_draws, subset_by_name
from tests.data.pictures import digits_folder
from tests.data.test_splits import LABELS


def numbers(labels: torch.Tensor, seed: int = 0) -> np.ndarray:
    return name_draws([f"{i}.png" for i in range(len(labels))], "test", seed)


@given(labels=LABELS, fraction=st.floats(0, 0.9), seed=st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_every_class_gets_about_its_share(labels: torch.Tensor, fraction: float, seed: int) -> None:
    kept, held = hold_out_by_name(labels, numbers(labels, seed), fraction)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    for label in labels.unique():
        size, out = int((labels == label).sum()), int((labels[held] == label).sum())
        exact = size * fraction
        assert out < size
        assert abs(out - exact) <= max(1, exact / 2) or out == size - 1
        assert out >= min(1, round(exact), size - 1)


def test_added_images_do_not_move_others() -> None:
    """Of 400 folders that grow by a tenth, whose classes are large."""
    moved = 0
    for seed in range(400):
        labels = torch.arange(1100) % 5
        draws = numbers(labels, seed)
        before = hold_out_by_name(labels[:1000], draws[:1000], 0.2)[1]
        after = hold_out_by_name(labels, draws, 0.2)[1]
        moved += len(set(before.tolist()) ^ set(after[after < 1000].tolist()))
    assert moved == 0


def test_in_small_classes_an_added_image_seldom_moves_another() -> None:
    moved = 0
    for seed in range(200):
        labels = torch.zeros(37, dtype=torch.int64)
        draws = numbers(labels, seed)
        before = hold_out_by_name(labels[:36], draws[:36], 0.2)[1]
        after = hold_out_by_name(labels, draws, 0.2)[1]
        moved += len(set(before.tolist()) ^ set(after[after < 36].tolist()))
    assert moved <= 0.15 * 200


def test_the_order_of_the_names_does_not_matter() -> None:
    names = [f"cat/{i}.jpg" for i in range(200)]
    labels = torch.zeros(200, dtype=torch.int64)
    held = hold_out_by_name(labels, name_draws(names, "test", 0), 0.2)[1]
    backwards = hold_out_by_name(labels, name_draws(names[::-1], "test", 0), 0.2)[1]
    assert {names[i] for i in held} == {names[::-1][i] for i in backwards}


def test_numbers_differ_by_purpose_and_seed_but_not_by_how_letters_are_composed() -> None:
    name = "caf\u00e9/1.png"
    assert name_draws([name], "test", 0) == name_draws(
        [unicodedata.normalize("NFD", name)], "test", 0
    )
    draws = {float(name_draws([name], p, s)[0]) for p in ("test", "val") for s in (0, 1)}
    assert len(draws) == 4
    assert 0.45 < name_draws([f"{i}" for i in range(2000)], "val", 3).mean() < 0.55
    assert len(name_draws(["\udcff.png"], "test", 0)) == 1  # a name that is not UTF-8


@pytest.mark.parametrize("size", [0, 1, 2])
def test_small_classes_keep_at_least_one_image(size: int) -> None:
    labels = torch.arange(5).repeat(size)
    kept, held = hold_out_by_name(labels, numbers(labels), 0.2)
    assert (len(held) > 0) == (size == 2)
    assert len(labels[kept].unique()) == (5 if size else 0)


@given(labels=LABELS, count=st.integers(1, 210), seed=st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_a_subset_has_the_size_asked_for(labels: torch.Tensor, count: int, seed: int) -> None:
    chosen = subset_by_name(labels, numbers(labels, seed), count)
    assert len(chosen) == min(count, len(labels)) == len(set(chosen.tolist()))


@given(labels=LABELS, folds=st.integers(2, 6), seed=st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_folds_are_a_partition_that_keeps_proportions(
    labels: torch.Tensor, folds: int, seed: int
) -> None:
    draws = numbers(labels, seed)
    parts = [fold_by_name(labels, draws, folds, fold) for fold in range(folds)]
    assert torch.cat([held for _, held in parts]).sort().values.tolist() == [*range(len(labels))]
    for kept, held in parts:
        assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
        assert abs(len(held) - len(labels) / folds) < 1
        for label in labels.unique():
            inside, size = (int((x == label).sum()) for x in (labels[held], labels))
            assert abs(inside - size / folds) < 1


def names(splits: Splits, part: str) -> set[str]:
    files = getattr(splits, part).files
    assert files is not None
    return set(files.names)


def test_a_folder_that_grows_keeps_its_test_and_validation_images(tmp_path: Path) -> None:
    config = DataConfig(name="folder", root=tmp_path, image_size=8, workers=0)
    digits_folder(tmp_path, 20, 100)
    before = load_splits(config)
    digits_folder(tmp_path, 0, 5)  # they come first by name, so every position changes
    after = load_splits(config)
    assert len(before.test) == pytest.approx(160, abs=30)
    assert len(before.val) == pytest.approx(64, abs=25)
    for part in ("train", "val", "test"):
        moved = names(before, part) - names(after, part)
        assert len(moved) <= 2, moved


def test_folds_of_a_folder_cover_it_once(tmp_path: Path) -> None:
    digits_folder(tmp_path, 0, 10, classes=3)
    config = DataConfig(name="folder", root=tmp_path, image_size=8, workers=0, val_fraction=0.2)
    whole = load_splits(config.model_copy(update={"val_fraction": 0.0}))
    folds = [load_splits(config.model_copy(update={"folds": 4, "fold": f})) for f in range(4)]
    tested = [name for fold in folds for name in names(fold, "test")]
    assert sorted(tested) == sorted(names(whole, "train"))
    for fold in folds:
        assert not names(fold, "train") & (names(fold, "test") | names(whole, "test"))
