"""The vectorized transform compared with plain loops over images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data import DatasetInfo, Split
from saccade.data.randomness import Purpose, make_key
from saccade.data.transform import Stream, Transform, _beta, mix, mix_targets, resized_boxes

KEY = make_key(11, 2, Purpose.AUGMENT)


def transformed(
    toy: tuple[Split, DatasetInfo], config: AugmentConfig
) -> tuple[Tensor, Tensor, object]:
    """Normalized originals, the transform's output and its draws."""
    split, info = toy
    assert split.images is not None
    rows = torch.arange(len(split))
    plain = Transform(None, info, torch.device("cpu"))
    transform = Transform(config, info, torch.device("cpu"))
    draws = transform.draw(KEY, rows)
    original = plain(split.images, rows, plain.draw(KEY, rows), cropped=False)
    return original, transform(split.images, rows, draws, cropped=False), draws


def shifted(image: Tensor, dy: int, dx: int, flip: bool) -> Tensor:
    """One image, one pixel at a time: crop at an offset, zero outside, then mirror."""
    out = torch.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y + dy < height and 0 <= x + dx < width:
                out[:, y, x] = image[:, y + dy, x + dx]
    return out.flip(-1) if flip else out


def matches_shift(original: Tensor, out: Tensor, offsets: Tensor, flips: Tensor) -> bool:
    wanted = [
        shifted(image, int(dy), int(dx), bool(flip))
        for image, (dy, dx), flip in zip(original, offsets, flips, strict=True)
    ]
    return torch.equal(torch.stack(wanted), out)


@pytest.mark.parametrize(("padding", "flip"), [(3, True), (3, False), (0, True)])
def test_crop_and_flip_equal_a_loop(
    toy: tuple[Split, DatasetInfo], padding: int, flip: bool
) -> None:
    original, out, draws = transformed(toy, AugmentConfig(crop_padding=padding, flip=flip))
    offsets = torch.zeros(37, 2, dtype=torch.int64)
    if padding:
        pair = torch.stack([draws[Stream.CROP_TOP], draws[Stream.CROP_LEFT]], 1)
        offsets = (pair * (2 * padding + 1)).floor().long() - padding
        assert {-padding, padding} <= set(offsets.flatten().tolist())
    flips = draws[Stream.FLIP] < 0.5 if flip else torch.zeros(37, dtype=torch.bool)
    assert matches_shift(original, out, offsets, flips)
    assert not matches_shift(original, out, offsets + 1, flips)
    assert not matches_shift(original, out, offsets, ~flips)


@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_erasing_blanks_one_square(toy: tuple[Split, DatasetInfo], probability: float) -> None:
    config = AugmentConfig(erase=4, erase_probability=probability)
    original, out, draws = transformed(toy, config)
    erased = 0
    for number, (before, after) in enumerate(zip(original, out, strict=True)):
        wanted = before.clone()
        if draws[Stream.ERASE][number] < probability:
            y = int(draws[Stream.ERASE_Y][number] * 9) - 2
            x = int(draws[Stream.ERASE_X][number] * 7) - 2
            wanted[:, max(y, 0) : y + 4, max(x, 0) : x + 4] = 0
            erased += 1
        assert torch.equal(wanted, after)
    assert erased == 37 if probability == 1 else 8 < erased < 30


def test_resized_crops_have_the_area_asked_for(toy: tuple[Split, DatasetInfo]) -> None:
    config = AugmentConfig(resized_crop=(0.2, 0.6))
    transform = Transform(config, toy[1], torch.device("cpu"))
    top, left, height, width = resized_boxes((0.2, 0.6), transform.draw(KEY, torch.arange(5000)))
    area = height * width
    assert area.min() >= 0.2 - 1e-4
    assert area.max() <= 0.6 + 1e-4
    assert area.mean() == pytest.approx(0.4, abs=0.02)
    ratio = height / width
    assert ratio.max() <= 4 / 3 + 1e-4
    assert ratio.min() >= 3 / 4 - 1e-4
    assert ((top + height <= 1 + 1e-6) & (left + width <= 1 + 1e-6)).all()


def test_a_full_resized_crop_is_nearly_the_image(toy: tuple[Split, DatasetInfo]) -> None:
    info = toy[1]
    gradient = torch.linspace(0, 255, 63).round().to(torch.uint8).view(1, 1, 9, 7)
    images = gradient.repeat(4, 3, 1, 1)
    transform = Transform(AugmentConfig(resized_crop=(1, 1)), info, torch.device("cpu"))
    rows = torch.arange(4)
    out = transform(images, rows, transform.draw(KEY, rows), cropped=False)
    plain = Transform(None, info, torch.device("cpu"))
    original = plain(images, rows, plain.draw(KEY, rows), cropped=False)
    assert (out - original).abs().mean() < 0.15


def mixed(config: AugmentConfig, count: int = 400) -> tuple[Tensor, Tensor, Tensor, object]:
    info = DatasetInfo("toy", 3, ("a", "b", "c"), (8, 8), 1, (0.5,), (0.25,))
    transform = Transform(config, info, torch.device("cpu"))
    draws = transform.draw(KEY, torch.arange(count + 1))
    images = torch.arange(count + 1.0)[:, None, None, None].expand(-1, 1, 8, 8)
    out, weight = mix(images, draws, config)
    return images, out, weight, draws


def test_mixup_blends_with_the_next_image() -> None:
    images, out, weight, _ = mixed(AugmentConfig(mixup=1.0))
    wanted = (
        images[:-1] * weight[:, None, None, None] + images[1:] * (1 - weight)[:, None, None, None]
    )
    torch.testing.assert_close(out, wanted)
    assert 0.45 < weight.mean() < 0.55


def test_cutmix_counts_its_pixels_exactly() -> None:
    images, out, weight, _ = mixed(AugmentConfig(cutmix=1.0))
    own = out == images[:-1]
    assert (own | (out == images[1:])).all()
    assert torch.equal(own.flatten(1).sum(1) / 64, weight)
    assert weight.min() < 0.3
    assert weight.max() == 1


def test_with_mixup_and_cutmix_each_image_uses_one() -> None:
    images, out, _, _ = mixed(AugmentConfig(mixup=1.0, cutmix=1.0))
    whole = ((out == images[:-1]) | (out == images[1:])).flatten(1).all(1)
    assert 0.4 < whole.float().mean() < 0.6


def test_images_that_are_not_mixed_stay_as_they_are() -> None:
    images, out, weight, draws = mixed(AugmentConfig(mixup=0.5, cutmix=1.0, mix_probability=0.25))
    spared = draws[Stream.MIX][:-1] >= 0.25
    assert 0.65 < spared.float().mean() < 0.85
    assert torch.equal(out[spared], images[:-1][spared])
    assert (weight[spared] == 1).all()


def test_soft_targets_carry_the_weights() -> None:
    targets = mix_targets(torch.tensor([0, 2, 2]), torch.tensor([0.75, 0.25]), 3)
    assert torch.equal(targets, torch.tensor([[0.75, 0, 0.25], [0, 0, 1.0]]))


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 4.0])
def test_weights_follow_the_beta_distribution(alpha: float) -> None:
    uniform = (torch.arange(100_000) + 0.5) / 100_000
    weight = _beta(alpha, uniform)
    assert weight.mean().item() == pytest.approx(0.5, abs=1e-3)
    assert weight.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=5e-3)
