from __future__ import annotations

import torch
from benchmarks import small_targets as targets
from benchmarks.small_targets import TARGET_CLASSES, num_targets, render_targets


def test_an_image_does_not_depend_on_its_batch() -> None:
    together = render_targets(torch.arange(20), 96)
    for index in (0, 7, 19):
        assert torch.equal(render_targets(torch.tensor([index]), 96)[0], together[index])


def test_part_and_seed_change_the_images() -> None:
    index = torch.arange(4)
    assert not torch.equal(render_targets(index, 64), render_targets(index, 64, "test"))
    assert not torch.equal(render_targets(index, 64), render_targets(index, 64, seed=1))


def test_shapes_keep_their_size_in_pixels_and_grow_in_number() -> None:
    assert [num_targets(size) for size in (64, 512, 1024)] == [8, 256, 1024]
    covered = []
    for size in (256, 512):
        gray = render_targets(torch.arange(4), size).float()
        covered.append((gray.std(1) > 0).float().mean())
    assert 0.015 < covered[0] < 0.06  # the area of the shapes is a few percent of the image
    assert abs(covered[0] - covered[1]) < 0.3 * covered[0]


def test_the_class_is_the_most_frequent_kind() -> None:
    index = torch.arange(16)
    draws = torch.rand(16, num_targets(512), 8)
    kinds = targets._kinds(index, draws)
    counts = torch.nn.functional.one_hot(kinds, len(TARGET_CLASSES)).sum(1)
    assert torch.equal(counts.argmax(1), index % len(TARGET_CLASSES))
    others = counts.topk(2, dim=1).values
    assert (others[:, 0] > 2 * others[:, 1]).all()


def test_only_windows_of_shapes_differ_from_the_ground() -> None:
    index = torch.arange(2)
    key = targets.make_key(0, 0, targets.Purpose.TARGETS)
    changed = (render_targets(index, 128) != targets._ground(key, index, 128)).any(1)
    assert 0.01 < changed.float().mean() < 0.1
    largest = num_targets(128) * targets.WINDOW**2
    assert changed.sum((1, 2)).max() < largest
