from __future__ import annotations

import torch

from saccade.config import DataConfig
from saccade.data import load_splits, make_loader, shapes_masks
from saccade.data.shapes import SHAPES, ShapesSource, render_shapes


def test_an_image_does_not_depend_on_its_batch() -> None:
    together, masks = render_shapes(torch.arange(40), 24)
    for index in (0, 7, 39):
        alone, mask = render_shapes(torch.tensor([index]), 24)
        assert torch.equal(alone[0], together[index])
        assert torch.equal(mask[0], masks[index])


def test_train_and_test_show_different_scenes() -> None:
    index = torch.arange(8)
    assert not torch.equal(render_shapes(index, 16)[0], render_shapes(index, 16, "test")[0])
    assert not torch.equal(render_shapes(index, 16)[0], render_shapes(index, 16, seed=1)[0])


def test_every_shape_covers_some_of_the_image_and_stands_out() -> None:
    images, masks = render_shapes(torch.arange(400), 48)
    share = masks.float().mean((1, 2))
    assert share.min() > 0.02
    assert share.max() < 0.4
    pixels = images.float()
    inside = (pixels * masks[:, None]).sum((2, 3)) / masks.sum((1, 2))[:, None]
    outside = (pixels * ~masks[:, None]).sum((2, 3)) / (~masks).sum((1, 2))[:, None]
    assert (inside - outside).abs().max(1).values.min() > 30


def test_resolutions_show_the_same_scene() -> None:
    coarse = shapes_masks(torch.arange(64), 32).float().mean((1, 2))
    fine = shapes_masks(torch.arange(64), 96).float().mean((1, 2))
    assert (coarse - fine).abs().max() < 0.02


def test_masks_match_the_images_of_a_split() -> None:
    splits = load_splits(DataConfig(name="shapes", image_size=16, num_train=80, num_test=16))
    assert (len(splits.train), len(splits.val), len(splits.test)) == (72, 8, 16)
    assert splits.info.class_names == SHAPES
    assert splits.val.origin is not None
    assert splits.val.images is not None
    images, masks = render_shapes(splits.val.origin, 16)
    assert torch.equal(images, splits.val.images)
    assert torch.equal(masks, shapes_masks(splits.val.origin, 16))
    assert torch.equal(splits.val.labels, splits.val.origin % len(SHAPES))


def test_large_sets_of_shapes_are_drawn_on_read() -> None:
    config = DataConfig(name="shapes", image_size=512, num_train=720, num_test=8)
    splits = load_splits(config)
    assert isinstance(splits.train.source, ShapesSource)
    assert splits.test.images is not None
    loader = make_loader(
        splits.train, splits.info, batch_size=2, augment=None, seed=0, device="cpu", shuffle=True
    )
    batch = next(iter(loader.epoch(0)))
    assert batch.images.shape == (2, 3, 512, 512)
    assert splits.train.origin is not None
    wanted = render_shapes(splits.train.origin[batch.index], 512)[0].float() / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (splits.info.mean, splits.info.std))
    torch.testing.assert_close(batch.images, (wanted - mean) / std)
