"""Streamed hub sets behave like sets in memory, except for the order."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from saccade.config import AugmentConfig, DataConfig
from saccade.data import Batch, Loader, Split, Splits, load_splits, make_loader
from saccade.errors import ConfigError, DataError
from tests.data.test_loader import AUGMENTS, same, samples

pytest.importorskip("datasets", reason="the datasets package is not installed")

from tests.data.shards import digit_images, digits_on_the_hub, write_shards

STREAMED = {"resident_gib": 0, "buffer_mib": 0.02}  # some four row groups of twenty digits a window


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_on_the_hub(tmp_path_factory.mktemp("hub"))


def load(root: Path, **changes: object) -> Splits:
    options = {"name": f"hf:{root}", "image_size": 8, "workers": 2, "val_fraction": 0.0}
    return load_splits(DataConfig.model_validate(options | changes))


@pytest.fixture(scope="module")
def resident(root: Path) -> Splits:
    return load(root)


@pytest.fixture(scope="module")
def streamed(root: Path) -> Splits:
    return load(root, **STREAMED)


def loader(
    splits: Splits, augment: AugmentConfig | None = None, *, shuffle: bool = True, **changes: int
) -> Loader:
    options = {"batch_size": 32, "workers": 0, "seed": 3} | changes
    return make_loader(
        splits.train, splits.info, augment=augment, device="cpu", shuffle=shuffle, **options
    )


def equal(first: Batch, second: Batch) -> bool:
    names = ("images", "targets", "index", "valid")
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


def block_of(split: Split) -> torch.Tensor:
    assert split.stream is not None
    return split.stream.blocks


def test_a_set_is_the_same_in_memory_streamed_and_as_the_package_reads_it(
    root: Path, resident: Splits, streamed: Splits
) -> None:
    from datasets import load_dataset

    for part in ("train", "test"):
        kept, stream = getattr(resident, part), getattr(streamed, part)
        assert kept.stream is None
        assert stream.images is None
        rows = list(load_dataset(str(root), split=part, streaming=True))
        assert [row["label"] for row in rows] == kept.labels.tolist() == stream.labels.tolist()
        pixels = [np.asarray(row["image"].convert("RGB")).transpose(2, 0, 1) for row in rows]
        assert np.array_equal(kept.images.numpy(), np.stack(pixels))
        assert all(torch.equal(stream.source.read(i), kept.images[i]) for i in range(0, 100, 7))


@pytest.mark.parametrize("name", ["none", "crop", "erase", "rand"])
def test_augmentation_depends_only_on_seed_epoch_and_index(
    resident: Splits, streamed: Splits, name: str
) -> None:
    alike = Splits(streamed.train, streamed.val, streamed.test, resident.info)
    kept = samples(loader(resident, AUGMENTS[name]).epoch(2))
    assert len(kept) == 400
    assert same(kept, samples(loader(alike, AUGMENTS[name], batch_size=13, workers=2).epoch(2)))


def test_the_order_is_a_function_of_seed_and_epoch(root: Path, streamed: Splits) -> None:
    def order(splits: Splits, epoch: int, seed: int = 3) -> list[int]:
        return [int(i) for batch in loader(splits, seed=seed).epoch(epoch) for i in batch.index]

    first = order(streamed, 0)
    assert sorted(first) == list(range(400))
    assert order(load(root, **STREAMED), 0) == first
    assert first not in (order(streamed, 1), order(streamed, 0, seed=4))
    unshuffled = loader(streamed, shuffle=False)
    assert [int(i) for batch in unshuffled.epoch(0) for i in batch.index] == list(range(400))


def test_an_epoch_is_shuffled_over_blocks_and_in_windows(streamed: Splits) -> None:
    blocks = block_of(streamed.train)
    batches = [blocks[batch.index] for batch in loader(streamed, batch_size=20).epoch(0)]
    assert all(len(torch.unique(batch)) > 1 for batch in batches)
    first_window = torch.unique(torch.cat(batches[:4]))
    assert 3 <= len(first_window) <= 5
    assert int(first_window.max() - first_window.min()) > 4


@given(
    batch_size=st.integers(1, 150),
    world_size=st.integers(1, 5),
    buffer_mib=st.floats(0.006, 0.5),
    shuffle=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_ranks_partition_an_epoch(
    root: Path,
    resident: Splits,
    batch_size: int,
    world_size: int,
    buffer_mib: float,
    shuffle: bool,
) -> None:
    splits = load(root, resident_gib=0, buffer_mib=buffer_mib)
    ranks = [
        list(
            loader(
                splits, shuffle=shuffle, batch_size=batch_size, world_size=world_size, rank=rank
            ).epoch(1)
        )
        for rank in range(world_size)
    ]
    seen = samples(batch for batches in ranks for batch in batches)
    assert sorted(seen) == list(range(400))
    assert all(int(seen[i][1]) == int(resident.train.labels[i]) for i in seen)
    sizes = [[len(batch.images) for batch in batches] for batches in ranks]
    assert sizes == [sizes[0]] * world_size


def test_ranks_read_blocks_of_their_own(streamed: Splits) -> None:
    blocks = block_of(streamed.train)
    ranks = [loader(streamed, batch_size=8, world_size=3, rank=rank) for rank in range(3)]
    read = [{int(blocks[i]) for b in rank.epoch(0) for i in b.index} for rank in ranks]
    assert len(read[0] & read[1]) + len(read[1] & read[2]) + len(read[0] & read[2]) <= 2


def test_fewer_images_than_ranks_still_gives_every_rank_a_step(root: Path) -> None:
    few = load(root, num_train=2, **STREAMED)
    ranks = [list(loader(few, world_size=4, rank=rank).epoch(0)) for rank in range(4)]
    assert [len(batches) for batches in ranks] == [1] * 4
    assert sorted(samples(batch for batches in ranks for batch in batches)) == [0, 1]


@pytest.mark.parametrize(("name", "workers"), [("none", 0), ("mixes", 2), ("resized", 0)])
def test_an_epoch_resumes_in_the_middle(streamed: Splits, name: str, workers: int) -> None:
    for rank in range(2):
        options = {"batch_size": 24, "world_size": 2, "rank": rank, "workers": workers}
        whole = list(loader(streamed, AUGMENTS[name], **options).epoch(4))
        assert len(whole) == 9
        for start in (1, 5, 8, 9):
            rest = list(loader(streamed, AUGMENTS[name], **options).epoch(4, start_batch=start))
            assert len(rest) == 9 - start
            assert all(equal(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_parts_are_cut_along_blocks(root: Path) -> None:
    splits = load(root, val_fraction=0.25, **STREAMED)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (300, 100, 100)
    assert not {*block_of(splits.train).tolist()} & {*block_of(splits.val).tolist()}
    assert torch.equal(load(root, val_fraction=0.25, **STREAMED).val.labels, splits.val.labels)
    other = load(root, val_fraction=0.25, split_seed=1, **STREAMED)
    assert not torch.equal(block_of(other.val), block_of(splits.val))
    folds = [load(root, folds=3, fold=fold, **STREAMED) for fold in range(3)]
    assert sorted(torch.cat([fold.test.source.rows for fold in folds]).tolist()) == [*range(400)]
    for fold in folds:
        rows = torch.cat([fold.train.source.rows, fold.test.source.rows])
        assert sorted(rows.tolist()) == list(range(400))


def test_sizes_decide_what_is_streamed(root: Path) -> None:
    decoded_gib = 500 * 3 * 8 * 8 / 2**30
    assert load(root, resident_gib=decoded_gib).train.stream is None
    below = {**STREAMED, "resident_gib": 0.99 * decoded_gib}
    assert load(root, **below).train.stream is not None
    limited = load(root, **below, num_train=100, num_test=50)
    assert limited.train.stream is None
    assert (len(limited.train), len(limited.test)) == (100, 50)
    stratified = load(root, num_train=100)
    assert torch.bincount(stratified.train.labels).tolist() == [10] * 10


def test_a_buffer_too_small_for_two_row_groups_says_what_it_needs(root: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.buffer_mib must be at least 0\.006 .*, got 0\.004$"
    ):
        load(root, resident_gib=0, buffer_mib=0.004)
    assert load(root, resident_gib=0, buffer_mib=0.006).train.stream is not None


def test_statistics_of_a_sample_are_near_those_of_all(resident: Splits, streamed: Splits) -> None:
    assert streamed.info.mean == pytest.approx(resident.info.mean, abs=0.01)
    assert streamed.info.std == pytest.approx(resident.info.std, abs=0.01)


def test_a_class_missing_from_validation_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images, labels = digit_images(0, 100)
    order = np.argsort(labels, kind="stable")
    sorted_images, sorted_labels = [images[i] for i in order], [labels[i] for i in order]
    write_shards(tmp_path, "train", sorted_images, sorted_labels, files=1, group=10)
    with caplog.at_level(logging.WARNING):
        load(tmp_path, val_fraction=0.1, **STREAMED)
    assert "of 10 classes are not in the validation split" in caplog.text


def hub_set(root: Path, *, bad: tuple[int, ...] = (), test_label: int | None = None) -> Path:
    """Write two files of 40 digits, some truncated, and a test split that may hide its labels."""
    images, labels = digit_images(0, 120)
    images = [image[:60] if number in bad else image for number, image in enumerate(images)]
    write_shards(root, "train", images[:80], labels[:80], files=2, group=10)
    hidden = labels[80:100] if test_label is None else [test_label] * 20
    write_shards(root, "test", images[80:100], hidden, files=1, group=10)
    write_shards(root, "validation", images[100:], labels[100:], files=1, group=10)
    return root


def test_a_test_split_with_hidden_labels_is_skipped(tmp_path: Path) -> None:
    shown = load(hub_set(tmp_path / "shown"))
    hidden = load(hub_set(tmp_path / "hidden", test_label=-1))
    _, labels = digit_images(80, 120)
    assert shown.test.labels.tolist() == labels[:20]
    assert hidden.test.labels.tolist() == labels[20:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_named(tmp_path: Path, workers: int) -> None:
    splits = load(hub_set(tmp_path, bad=(57,)), on_bad_image="skip", **STREAMED)
    source = replace(splits.train.source, max_bad_images=0)
    strict = replace(splits, train=replace(splits.train, source=source))
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet row 17: .*truncated") as e:
        list(loader(strict, workers=workers, batch_size=8).epoch(0))
    assert "\n" not in str(e.value)
    assert "on_bad_image='skip'" in str(e.value)


def test_loading_names_a_bad_image_of_the_sample(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bad image .*parquet row 3: .*on_bad_image='skip'"):
        load(hub_set(tmp_path, bad=(3,)), **STREAMED)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_skipped_up_to_a_limit(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = hub_set(tmp_path, bad=(3, 57))
    skipping = {"on_bad_image": "skip", "max_bad_images": 2, **STREAMED}
    with caplog.at_level(logging.WARNING):
        reading = loader(load(root, **skipping), workers=workers, batch_size=8)
        seen = samples(reading.epoch(0))
        list(reading.epoch(1))
    assert sorted(seen) == [i for i in range(80) if i not in (3, 57)]
    assert len(caplog.records) == 2
    capped = loader(load(root, **skipping | {"max_bad_images": 1}), workers=workers, batch_size=8)
    with pytest.raises(DataError, match=r"2 bad images, data\.max_bad_images=1"):
        list(capped.epoch(0))


def test_a_batch_of_only_bad_images_is_not_valid(tmp_path: Path) -> None:
    splits = load(hub_set(tmp_path, bad=(3,)), on_bad_image="skip", **STREAMED)
    batches = list(loader(splits, batch_size=1, shuffle=False).epoch(0))
    assert [int(batch.index) for batch in batches if not batch.valid.all()] == [3]


def test_bad_images_of_a_set_in_memory_are_skipped_or_an_error(tmp_path: Path) -> None:
    root = hub_set(tmp_path, bad=(3, 57))
    with pytest.raises(DataError, match=r"row 3: .*to skip it, set data\.on_bad_image='skip'"):
        load(root, workers=1)
    assert len(load(root, on_bad_image="skip").train) == 78
    with pytest.raises(DataError, match=r"2 bad images, data\.max_bad_images=1"):
        load(root, on_bad_image="skip", max_bad_images=1)


def test_a_row_without_an_image_is_a_bad_image(tmp_path: Path) -> None:
    images, labels = digit_images(0, 40)
    write_shards(tmp_path, "train", [*images[:39], b""], labels, files=1, group=10)
    with pytest.raises(DataError, match=r"row 39: the file is empty"):
        load(tmp_path)


def test_resized_crops_use_the_full_size_image(tmp_path: Path) -> None:
    wide = Image.new("RGB", (40, 20), "black")
    wide.paste("white", (20, 0, 40, 20))
    file = io.BytesIO()
    wide.save(file, "PNG")
    write_shards(tmp_path, "train", [file.getvalue()] * 20, [*range(10)] * 2, files=1, group=10)
    source = load(tmp_path, **STREAMED).train.source
    assert (source.read(0, (0.0, 0.5, 1.0, 0.5))[:, :, 1:] == 255).all()
    assert (source.read(0, (0.0, 0.0, 1.0, 0.5))[:, :, :-1] == 0).all()
