"""The generated tasks: answers against evaluators written here, balance, uniqueness, workers."""

import re
import statistics
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import ndimage

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.data.listops import SYMBOLS, listops
from saccade.data.pathfinder import SETTINGS, PathfinderSettings, pathfinder
from saccade.data.randomness import part_key
from saccade.data.recall import recall
from saccade.data.sequence_sets import make_items, name_arrays
from saccade.errors import ConfigError, DataError, UnknownNameError

TRAIN, TEST = part_key(0, "train"), part_key(0, "test")
WIDE = PathfinderSettings(
    size=96,
    margin=0,
    clearance=6,
    paddle_length=8,
    contour_length=5,
    distractor_length=2,
    seed_distance=16,
    thickness=1,
    marker_radius=3,
    cells=1,
)
"""Paddles that touch the next one and are far from all others: paths are connected components."""


def value_by_substitution(text: str, version: str) -> int:
    """Replace the innermost brackets by their values until one number is left."""
    apply = {
        "MIN": min,
        "MAX": max,
        "SM": lambda v: sum(v) % 10,
        "FIRST": lambda v: v[0],
        "LAST": lambda v: v[-1],
        "MED": (lambda v: int(statistics.median(v)))
        if version == "lra"
        else (lambda v: statistics.median_high(v)),
    }
    inner = re.compile(r"\[(\w+)((?: \d)+) \]")
    while inner.search(text):
        text = inner.sub(lambda m: str(apply[m[1]]([int(w) for w in m[2].split()])), text)
    return int(text)


def texts(version: str, key: int, count: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    symbols, lengths, values = listops(version, key, 0, count)
    words = [[SYMBOLS[s] for s in row[:n]] for row, n in zip(symbols, lengths, strict=True)]
    assert all(not row[n:].any() for row, n in zip(symbols, lengths, strict=True))
    return [" ".join(row) for row in words], lengths, values


@pytest.mark.parametrize("version", ["lra", "taylorshift"])
def test_listops_answers_are_those_of_another_evaluator(version: str) -> None:
    found, lengths, values = texts(version, TRAIN, 150)
    assert [value_by_substitution(text, version) for text in found] == values.tolist()
    assert min(lengths) >= (501 if version == "lra" else 500)
    assert max(lengths) <= (1999 if version == "lra" else 2000)
    names = {"MIN", "MAX", "MED", "SM"} | ({"FIRST", "LAST"} if version != "lra" else set())
    assert set(re.findall(r"\[(\w+)", " ".join(found))) == names
    assert len(set(found)) == len(found)
    assert set(values.tolist()) == set(range(10))
    assert np.bincount(values).max() < 0.35 * len(values)


def test_the_two_medians_differ() -> None:
    """The evaluator of one version finds wrong answers in the other."""
    found, _, values = texts("lra", TRAIN, 60)
    assert [value_by_substitution(text, "taylorshift") for text in found] != values.tolist()


def test_listops_lra_has_operators_with_probability_a_quarter_and_2_to_10_arguments() -> None:
    found, _, _ = texts("lra", TRAIN, 150)
    depths, arguments = [], []
    for text in found:
        open_counts: list[int] = []
        for word in text.split():
            if word == "]":
                arguments.append(open_counts.pop())
            if word != "]" and open_counts:
                open_counts[-1] += 1
            if word.startswith("["):
                open_counts.append(0)
            depths.append(len(open_counts))
    assert (min(arguments), max(arguments)) == (2, 10)
    assert max(depths) == 9  # an operator's depth is below 10
    assert 5.5 < statistics.fmean(arguments) < 6.5


def test_listops_taylorshift_grows_to_lengths_from_500_to_2000_evenly() -> None:
    _, lengths, _ = texts("taylorshift", TRAIN, 200)
    assert 1150 < np.mean(lengths) < 1350
    assert min(lengths) < 550
    assert max(lengths) > 1950


def components(image: np.ndarray) -> np.ndarray:
    labels, _ = ndimage.label(image > 20, structure=np.ones((3, 3)))
    return labels


def test_pathfinder_discs_are_joined_exactly_in_class_1() -> None:
    images, labels = pathfinder(TRAIN, 0, 200, WIDE)
    assert np.bincount(labels).tolist() == [100, 100]
    discs = ndimage.uniform_filter(images.astype(float), (0, 3, 3)) > 250
    found = []
    for image, disc in zip(images, discs, strict=True):
        spots, count = ndimage.label(disc)
        if count != 2:  # two discs that touch: one component either way
            found.append(None)
            continue
        parts = components(image)
        ends = [parts[tuple(np.argwhere(spots == n)[0])] for n in (1, 2)]
        found.append(int(ends[0] == ends[1]))
    known = [(f, y) for f, y in zip(found, labels.tolist(), strict=True) if f is not None]
    assert len(known) > 180
    assert all(f == y for f, y in known)


@pytest.mark.parametrize("size", [32, 128])
def test_pathfinder_images_are_functions_of_their_index(size: int) -> None:
    settings = SETTINGS[size]
    images, labels = pathfinder(TRAIN, 0, 24, settings)
    again, _ = pathfinder(TRAIN, 17, 24, settings)
    other, _ = pathfinder(TEST, 0, 24, settings)
    assert images.shape == (24, size, size)
    np.testing.assert_array_equal(images[17:], again)
    assert len({image.tobytes() for image in (*images, *other)}) == 48
    assert labels.tolist() == [0, 1] * 12
    assert (images == 255).sum(axis=(1, 2)).min() >= 4  # the discs


def test_pathfinder_classes_do_not_differ_in_what_is_drawn() -> None:
    images, labels = pathfinder(TRAIN, 0, 1000, SETTINGS[32])
    light = [images[labels == label].mean() for label in (0, 1)]
    assert abs(light[0] / light[1] - 1) < 0.02
    fewer, _ = pathfinder(TRAIN, 0, 200, replace(SETTINGS[32], num_distractors=0))
    assert fewer.mean() < 0.85 * images.mean()


@pytest.mark.parametrize(("pairs", "length"), [(16, 33), (1, 200), (4, 40)])
def test_recall_answers_are_those_of_a_dictionary(pairs: int, length: int) -> None:
    symbols, labels = recall(
        TRAIN, 0, 500, num_pairs=pairs, num_keys=20, num_values=7, length=length
    )
    assert symbols.shape == (500, length)
    places = set()
    for row, label in zip(symbols.tolist(), labels.tolist(), strict=True):
        body, asked = row[:-1], row[-1]
        pairs_found = {body[i]: body[i + 1] - 20 for i, s in enumerate(body) if s < 20}
        assert len(pairs_found) == pairs
        assert all(0 <= value < 7 for value in pairs_found.values())
        assert pairs_found[asked] == label
        assert sum(s >= 27 for s in body) == length - 1 - 2 * pairs
        places.add(body.index(asked))
    assert len(places) >= min(pairs, 4)
    assert np.bincount(labels, minlength=7).min() > 40


MAKERS = {
    "listops_lra": (partial(listops, "lra", TRAIN), 1100),
    "pathfinder": (partial(pathfinder, TRAIN, settings=SETTINGS[32]), 1100),
    "recall": (
        partial(recall, TRAIN, num_pairs=4, num_keys=16, num_values=8, length=9),
        3000,
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_items_are_the_same_for_any_number_of_workers(name: str) -> None:
    make, count = MAKERS[name]
    alone, shared = make_items(make, count, 0), make_items(make, count, 2)
    assert alone.keys() == shared.keys()
    assert all(torch.equal(alone[key], shared[key]) for key in alone)
    part = name_arrays(make(7, 9))
    assert all(np.array_equal(alone[key][7:9].numpy(), part[key]) for key in part)


def small(**changes: object) -> DataConfig:
    values = {"name": "recall", "num_train": 400, "num_test": 100, "workers": 0}
    return DataConfig(**{**values, **changes})


def test_a_set_is_generated_once_and_a_damaged_file_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    first = load_splits(small())
    files = sorted(tmp_path.glob("recall-*.safetensors"))
    assert len(files) == 2
    before = [file.stat().st_mtime_ns for file in files]
    again = load_splits(small(val_fraction=0.2))
    assert [file.stat().st_mtime_ns for file in files] == before
    assert torch.equal(first.test.images, again.test.images)
    assert len(again.val) == 80
    other = load_splits(small(options={"seed": 1}))
    assert not torch.equal(first.test.images, other.test.images)
    content = bytearray(files[0].read_bytes())
    content[-1] ^= 1
    files[0].write_bytes(content)
    with pytest.raises(DataError, match="is damaged: delete it"):
        load_splits(small())


@pytest.mark.parametrize(("seed", "part"), [(0, "test"), (1, "train"), (1, "test")])
def test_a_file_of_other_items_is_refused(seed: int, part: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    load_splits(small())
    own = {file.name.split("-")[2]: file for file in tmp_path.glob("recall-*.safetensors")}
    before = set(tmp_path.glob("recall-*.safetensors"))
    load_splits(small(options={"seed": 1}))
    new = set(tmp_path.glob("recall-*.safetensors")) - before
    others = own if seed == 0 else {file.name.split("-")[2]: file for file in new}
    own["train"].write_bytes(others[part].read_bytes())
    with pytest.raises(DataError, match="holds other items: delete it"):
        load_splits(small())


def test_training_and_test_items_differ(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    splits = load_splits(small())
    parts = (splits.train, splits.val, splits.test)
    rows = [row.numpy().tobytes() for part in parts for row in part.images]
    assert len(set(rows)) == len(rows) == 500


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"options": {"num_pair": 3}}, UnknownNameError, "did you mean 'num_pairs'"),
        ({"options": {"num_pairs": 0}}, ConfigError, "num_pairs must be an integer of at least 1"),
        ({"options": {"num_pairs": 65}}, ConfigError, "num_keys must be at least num_pairs=65"),
        ({"options": {"num_values": 1}}, ConfigError, "num_values must be at least 2, got 1"),
        ({"options": {"length": 20}}, ConfigError, "length must be at least 33"),
        ({"options": {"length": 10**12}}, ConfigError, "at least 1 and at most 1048576"),
        ({"options": {"seed": 10**400}}, ConfigError, "and at most 18446744073709551615"),
        ({"options": {"num_pairs": 1, "num_keys": 2, "num_values": 2}}, DataError, "are copies"),
        ({"root": "/tmp"}, ConfigError, "data.root must be unset"),
        ({"image_size": 8}, ConfigError, "image_size must be unset for recall"),
        ({"name": "pathfinder", "image_size": 64}, ConfigError, "must be 32 or 128"),
        ({"name": "pathfinder", "options": {"contour_length": 1.5}}, ConfigError, "an integer"),
        ({"name": "pathfinder", "options": {"thickness": 0}}, ConfigError, "a number above 0"),
        ({"name": "pathfinder", "options": {"contour_length": 10**9}}, ConfigError, "at most 128"),
        ({"name": "pathfinder", "options": {"cells": 10**6}}, ConfigError, "at most 16"),
        (
            {"name": "pathfinder", "options": {"paddle_length": float("nan")}},
            ConfigError,
            "got nan",
        ),
        (
            {"name": "pathfinder", "options": {"clearance": 9.0}, "num_train": 8},
            DataError,
            "leave more room",
        ),
        ({"name": "digits", "options": {"a": 1}}, ConfigError, "must be empty for 'digits'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(changes, kind, told, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    with pytest.raises(kind, match=told) as raised:
        load_splits(small(**changes))
    assert "\n" not in str(raised.value)
