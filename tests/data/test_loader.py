"""A sample does not depend on its batch, its rank or the resume it was read after."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.config import AugmentConfig
from saccade.data import Batch, DatasetInfo, Loader, Split, make_loader
from saccade.data.transform import Transform
from saccade.errors import ConfigError

AUGMENTS = {
    "none": None,
    "crop": AugmentConfig(crop_padding=2, flip=True),
    "erase": AugmentConfig(flip=True, erase=4, erase_probability=0.5),
    "resized": AugmentConfig(resized_crop=(0.2, 1.0), flip=True),
    "mixes": AugmentConfig(crop_padding=1, mixup=0.4, cutmix=1.0, mix_probability=0.7),
    "trivial": AugmentConfig(crop_padding=1, flip=True, policy="trivial", mixup=1.0),
    "rand": AugmentConfig(policy="rand", rand_ops=3, rand_magnitude=20, erase=3),
}
Samples = dict[int, tuple[Tensor, Tensor]]


def loader_of(toy: tuple[Split, DatasetInfo], name: str, **changes: int) -> Loader:
    split, info = toy
    options = {"batch_size": 5, "rank": 0, "world_size": 1, "seed": 7} | changes
    return make_loader(split, info, augment=AUGMENTS[name], device="cpu", shuffle=True, **options)


def samples(batches: Iterable[Batch]) -> Samples:
    """Image and target of every valid entry, by its position in the split; each exactly once."""
    found: Samples = {}
    for batch in batches:
        for image, target, index, valid in zip(
            batch.images, batch.targets, batch.index.tolist(), batch.valid.tolist(), strict=True
        ):
            if valid:
                assert index not in found
                found[index] = image, target
    return found


def same(first: Samples, second: Samples) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(a, b) for i in first for a, b in zip(first[i], second[i], strict=True)
    )


@pytest.mark.parametrize("name", AUGMENTS)
@given(batch_size=st.integers(1, 40), world_size=st.integers(1, 4), epoch=st.integers(0, 9))
@settings(max_examples=8, deadline=None)
def test_batch_size_and_ranks_do_not_change_a_sample(
    toy: tuple[Split, DatasetInfo], name: str, batch_size: int, world_size: int, epoch: int
) -> None:
    alone = samples(loader_of(toy, name).epoch(epoch))
    assert len(alone) == len(toy[0])
    ranks = [
        loader_of(toy, name, batch_size=batch_size, world_size=world_size, rank=rank)
        for rank in range(world_size)
    ]
    assert same(alone, samples(batch for rank in ranks for batch in rank.epoch(epoch)))


@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("world_size", [1, 3])
def test_grouped_batches_equal_single_batches(
    toy: tuple[Split, DatasetInfo], name: str, world_size: int
) -> None:
    for rank in range(world_size):
        alone, together = (
            loader_of(toy, name, batch_size=3, world_size=world_size, rank=rank) for _ in range(2)
        )
        together.group_bytes = 12_000  # five batches
        for a, b in zip(alone.epoch(1), together.epoch(1), strict=True):
            for field in ("images", "targets", "index", "valid"):
                assert torch.equal(getattr(a, field), getattr(b, field))
            assert a.count == b.count


def test_the_comparison_sees_randomness_that_follows_the_batch(
    toy: tuple[Split, DatasetInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = samples(loader_of(toy, "crop").epoch(0))
    draw = Transform.draw
    monkeypatch.setattr(
        Transform, "draw", lambda self, key, index: draw(self, key, torch.arange(len(index)))
    )
    assert not same(alone, samples(loader_of(toy, "crop").epoch(0)))


@pytest.mark.parametrize("name", ["crop", "mixes"])
def test_a_resumed_epoch_has_the_same_batches(toy: tuple[Split, DatasetInfo], name: str) -> None:
    whole = list(loader_of(toy, name).epoch(3))
    rest = list(loader_of(toy, name).epoch(3, start_batch=4))
    assert len(rest) == len(whole) - 4
    for a, b in zip(whole[4:], rest, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.index, b.index)


@pytest.mark.parametrize("name", [name for name in AUGMENTS if name != "none"])
def test_seed_and_epoch_change_the_augmentation(toy: tuple[Split, DatasetInfo], name: str) -> None:
    base = samples(loader_of(toy, name).epoch(0))
    assert not same(base, samples(loader_of(toy, name).epoch(1)))
    assert not same(base, samples(loader_of(toy, name, seed=8).epoch(0)))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_last_epochs_are_not_mixed(toy: tuple[Split, DatasetInfo], compiled: bool) -> None:
    common = {"batch_size": 5, "seed": 7, "device": "cpu", "shuffle": True}
    mixes = AUGMENTS["mixes"].model_copy(update={"mix_probability": 1.0})
    plain = AUGMENTS["mixes"].model_copy(update={"mixup": 0.0, "cutmix": 0.0})
    loader = make_loader(*toy, augment=mixes, mixed_epochs=2, compiled=compiled, **common)
    always = make_loader(*toy, augment=mixes, **common)
    never = make_loader(*toy, augment=plain, **common)
    for epoch in range(4):
        for found, mixed, unmixed in zip(
            loader.epoch(epoch), always.epoch(epoch), never.epoch(epoch), strict=True
        ):
            assert (torch.equal(found.images, mixed.images)) == (epoch < 2)
            assert (torch.equal(found.images, unmixed.images)) == (epoch >= 2)
            one_hot = torch.nn.functional.one_hot(unmixed.targets, toy[1].num_classes).float()
            assert torch.equal(found.targets, mixed.targets if epoch < 2 else one_hot)


@given(size=st.integers(1, 37), world_size=st.integers(1, 5), batch_size=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_every_rank_has_equal_batches_and_every_sample_counts_once(
    toy: tuple[Split, DatasetInfo], size: int, world_size: int, batch_size: int
) -> None:
    split, info = toy
    assert split.images is not None
    part = Split(split.labels[:size], split.images[:size])
    ranks = [
        list(
            make_loader(
                part, info, batch_size=batch_size, augment=None, seed=0, device="cpu",
                shuffle=True, rank=rank, world_size=world_size,
            ).epoch(0)
        )
        for rank in range(world_size)
    ]  # fmt: skip
    assert len({tuple(len(batch.images) for batch in batches) for batches in ranks}) == 1
    counted = [batch.index[batch.valid] for batches in ranks for batch in batches]
    assert torch.cat(counted).sort().values.tolist() == list(range(size))


def test_ranks_share_the_steps_of_one_process(toy: tuple[Split, DatasetInfo]) -> None:
    together = [batch.index for batch in loader_of(toy, "none", batch_size=12).epoch(0)]
    ranks = [
        list(loader_of(toy, "none", batch_size=4, world_size=3, rank=rank).epoch(0))
        for rank in range(3)
    ]
    for step, index in enumerate(together):
        parts = [batches[step].index[batches[step].valid] for batches in ranks]
        assert torch.equal(torch.cat(parts), index)


def test_drop_last_leaves_only_full_steps(toy: tuple[Split, DatasetInfo]) -> None:
    split, info = toy
    options = {"augment": None, "seed": 0, "device": "cpu", "shuffle": True, "drop_last": True}
    loader = make_loader(split, info, batch_size=8, **options)
    batches = list(loader.epoch(0))
    assert len(loader) == len(batches) == 4
    assert all(len(batch.images) == 8 and batch.valid.all() for batch in batches)
    with pytest.raises(ConfigError, match=r"batch_size must be at most 37 .*, got 38"):
        make_loader(split, info, batch_size=38, **options)


def test_without_shuffling_the_order_is_the_split_s(toy: tuple[Split, DatasetInfo]) -> None:
    split, info = toy
    loader = make_loader(
        split, info, batch_size=10, augment=None, seed=0, device="cpu", shuffle=False
    )
    batches = list(loader.epoch(5))
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(37))
    assert torch.equal(torch.cat([batch.targets for batch in batches]), split.labels)
    assert split.images is not None
    pixels = split.images.float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (info.mean, info.std))
    torch.testing.assert_close(
        torch.cat([batch.images for batch in batches]), (pixels - mean) / std
    )


class Recorder(TorchDispatchMode):
    """Remembers which operators ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


WAITING = {"aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.unique"}


@pytest.mark.parametrize("name", AUGMENTS)
def test_no_operator_waits_for_the_device(toy: tuple[Split, DatasetInfo], name: str) -> None:
    batches = loader_of(toy, name).epoch(0)
    next(batches)
    with Recorder() as recorder:
        next(batches)
    assert len(recorder.names) > 3
    assert not recorder.names & WAITING


def test_the_recorder_detects_waiting() -> None:
    with Recorder() as recorder:
        values = torch.arange(3)
        values[values > 1].sum().item()
    assert {"aten._local_scalar_dense", "aten.nonzero"} & recorder.names


def test_an_empty_split_has_no_batches(toy: tuple[Split, DatasetInfo]) -> None:
    split, info = toy
    assert split.images is not None
    empty = Split(split.labels[:0], split.images[:0])
    loader = make_loader(
        empty, info, batch_size=4, augment=None, seed=0, device="cpu", shuffle=False
    )
    assert len(loader) == 0
    assert list(loader.epoch(0)) == []


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (AugmentConfig(crop_padding=7), "crop_padding must be less than 7, .* got 7"),
        (AugmentConfig(crop_padding=1, resized_crop=(0.5, 1)), "both crop"),
        (AugmentConfig(erase=15), "erase must be at most 14, .* got 15"),
        (AugmentConfig(policy="rand", rand_ops=99), "rand_ops must be at most 80, got 99"),
    ],
)
def test_augmentation_that_cannot_work_is_refused(
    toy: tuple[Split, DatasetInfo], augment: AugmentConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_loader(*toy, batch_size=4, augment=augment, seed=0, device="cpu", shuffle=True)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"rank": 2, "world_size": 2}])
def test_invalid_batch_size_or_rank_is_refused(
    toy: tuple[Split, DatasetInfo], options: dict[str, int]
) -> None:
    with pytest.raises(ConfigError, match=r"(batch_size|rank) must be .*, got"):
        loader_of(toy, "none", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", AUGMENTS)
def test_devices_agree(toy: tuple[Split, DatasetInfo], name: str) -> None:
    split, info = toy
    on_cpu = samples(loader_of(toy, name).epoch(0))
    loader = make_loader(
        split, info, batch_size=5, augment=AUGMENTS[name], seed=7, device="cuda", shuffle=True
    )
    on_gpu = samples(loader.epoch(0))
    assert on_cpu.keys() == on_gpu.keys()
    close = [torch.allclose(on_cpu[i][0], on_gpu[i][0].cpu(), atol=0.03) for i in on_cpu]
    assert sum(close) >= len(close) - 1  # a warped pixel may round to the next level
