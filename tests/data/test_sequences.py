"""Batches of sequences: every item once, cropped, grouped by length, the same after a resume."""

from dataclasses import replace

import pytest
import torch

from saccade.config import AugmentConfig
from saccade.data import DatasetInfo, Split, make_loader
from saccade.data.loader import GRANULE
from saccade.errors import ConfigError

COUNT, LONGEST = 403, 500
INFO = DatasetInfo(
    "toy", 3, ("a", "b", "c"), (1, LONGEST), 1, (0.0,), (1.0,), "symbols", 9, pad_symbol=0
)


def padded() -> Split:
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LONGEST + 1, (COUNT,), generator=draw)
    symbols = torch.randint(1, 9, (COUNT, LONGEST), generator=draw).to(torch.uint8)
    symbols[torch.arange(LONGEST) >= lengths[:, None]] = 0
    labels = torch.arange(COUNT) % 3
    return Split(labels, symbols, lengths=lengths)


def loader(split: Split, **options):
    defaults = {"batch_size": 8, "augment": None, "seed": 3, "device": "cpu", "shuffle": True}
    return make_loader(split, INFO, **{**defaults, **options})


def test_every_sequence_comes_once_and_is_whole() -> None:
    split = padded()
    for shuffle in (True, False):
        seen = []
        for batch in loader(split, shuffle=shuffle).epoch(1):
            rows = batch.index[batch.valid]
            seen += rows.tolist()
            width = batch.images.shape[1]
            assert batch.images.dtype == torch.int64
            assert width % GRANULE == 0 or width == LONGEST
            assert width < int(split.lengths[rows].max()) + GRANULE
            whole = split.images[rows, :width].long()
            assert torch.equal(batch.images[batch.valid], whole)
            assert not split.images[rows, width:].any()
            assert torch.equal(batch.targets[batch.valid], split.labels[rows])
        assert sorted(seen) == list(range(COUNT))


def test_grouping_leaves_little_padding_and_shuffles_steps() -> None:
    split = padded()
    widths = [batch.images.shape[1] for batch in loader(split, drop_last=True).epoch(0)]
    plain = replace(split, lengths=None)
    used = float(split.lengths.sum()) / COUNT
    assert sum(widths) / len(widths) < used + GRANULE
    assert {batch.images.shape[1] for batch in loader(plain).epoch(0)} == {LONGEST}
    assert sorted(widths) != widths  # short and long batches are mixed
    first = [b.index.tolist() for b in loader(split, drop_last=True).epoch(0)]
    second = [b.index.tolist() for b in loader(split, drop_last=True).epoch(1)]
    assert first != second
    assert len(first) == COUNT // 8


def test_evaluation_takes_the_longest_first() -> None:
    split = padded()
    order = torch.cat([b.index[b.valid] for b in loader(split, shuffle=False).epoch(0)])
    lengths = split.lengths[order]
    assert torch.equal(lengths, lengths.sort(descending=True).values)


def test_an_epoch_resumed_in_the_middle_has_the_same_batches() -> None:
    split = padded()
    whole = list(loader(split, drop_last=True).epoch(2))
    rest = list(loader(split, drop_last=True).epoch(2, start_batch=17))
    assert len(rest) == len(whole) - 17
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[17:], rest, strict=True))


def test_ranks_share_the_steps() -> None:
    split = padded()
    alone = list(loader(split, drop_last=True, batch_size=8).epoch(0))
    parts = [
        list(loader(split, drop_last=True, batch_size=4, rank=r, world_size=2).epoch(0))
        for r in (0, 1)
    ]
    for step, own in enumerate(alone):
        shared = torch.cat([part[step].index for part in parts])
        assert torch.equal(shared, own.index)


def test_augmentation_of_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="augment must be off for toy"):
        loader(padded(), augment=AugmentConfig(flip=True))
