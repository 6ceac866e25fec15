"""Every operation is compared with Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from saccade.data.policy import BINS, OPERATIONS, Policy, apply_operations

SIZE = 24
LEVELS = (0, 7, 19, 30)


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    """Smooth color pictures with some noise, uint8 (6, 3, 24, 24)."""
    generator = torch.Generator().manual_seed(4)
    coarse = torch.rand(6, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (SIZE, SIZE), mode="bicubic")
    noise = 0.05 * torch.randn(smooth.shape, generator=generator)
    return ((0.2 + 0.6 * smooth + noise) * 255).clamp(0, 255).to(torch.uint8)


def ours(policy: Policy, pictures: Tensor, operation: str, row: int) -> Tensor:
    count = len(pictures)
    number = torch.full((count,), OPERATIONS.index(operation))
    maps, values = policy.maps[row].expand(count, 6), policy.values[row].expand(count)
    return apply_operations(pictures.float(), number, maps, values, policy.fill)


def pillow(policy: Policy, picture: Image.Image, operation: str, row: int) -> Image.Image:
    value = policy.values[row].item()
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    if operation in enhancers:
        return enhancers[operation](picture).enhance(value)
    if operation == "posterize":
        return ImageOps.posterize(picture, 8 - round(np.log2(value)))
    if operation == "solarize":
        return ImageOps.solarize(picture, value)
    if operation == "autocontrast":
        return ImageOps.autocontrast(picture)
    if operation == "equalize":
        return ImageOps.equalize(picture)
    data = tuple(policy.maps[row].tolist())
    return picture.transform(picture.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)


def difference(policy: Policy, pictures: Tensor, operation: str, drawn: str, row: int) -> Tensor:
    """Share of pixels that differ from Pillow by more than a level."""
    images = [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in pictures]
    wanted = [np.array(pillow(policy, image, operation, row)) for image in images]
    reference = torch.from_numpy(np.stack(wanted)).permute(0, 3, 1, 2).float()
    return ((ours(policy, pictures, drawn, row) - reference).abs() > 1).float().mean()


def rows(operation: str) -> list[int]:
    first = OPERATIONS.index(operation) * BINS
    return [(first + level) * 2 + sign for level in LEVELS for sign in (0, 1)]


@pytest.mark.parametrize("name", ["trivial", "rand"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_equals_pillow(pictures: Tensor, name: str, operation: str) -> None:
    policy = Policy(name, (SIZE, SIZE), torch.zeros(1, 3, 1, 1))  # type: ignore[arg-type]
    # Where a warp meets the border, Pillow leaves a half-covered pixel out and we fade it.
    allowed = 0.11 if operation in {"shear_x", "shear_y", "rotate"} else 0.0
    for row in rows(operation):
        assert difference(policy, pictures, operation, operation, row) <= allowed


@pytest.mark.parametrize(
    ("operation", "drawn"),
    [("color", "contrast"), ("rotate", "identity"), ("equalize", "autocontrast")],
)
def test_the_pillow_comparison_detects_a_wrong_operation(
    pictures: Tensor, operation: str, drawn: str
) -> None:
    policy = Policy("trivial", (SIZE, SIZE), torch.zeros(1, 3, 1, 1))
    assert difference(policy, pictures, operation, drawn, rows(operation)[-1]) > 0.3


def test_pixels_uncovered_by_a_warp_are_filled() -> None:
    fill = torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1)
    policy = Policy("trivial", (SIZE, SIZE), fill)
    white = torch.full((1, 3, SIZE, SIZE), 255, dtype=torch.uint8)
    row = (OPERATIONS.index("translate_x") * BINS + 30) * 2
    assert torch.equal(ours(policy, white, "translate_x", row), fill.expand(1, 3, SIZE, SIZE))


def test_one_channel_pictures_pass_through_every_operation() -> None:
    policy = Policy("trivial", (8, 8), torch.zeros(1, 1, 1, 1))
    gray = torch.randint(0, 256, (14, 1, 8, 8), dtype=torch.uint8)
    choice = (torch.arange(14) + 0.5) / 14
    out = policy(gray.float(), [(choice, torch.full((14,), 0.7), torch.zeros(14))])
    assert out.shape == gray.shape
    assert torch.equal(out, out.round())
    assert torch.equal(out[0], gray[0].float())


def test_draws_reach_every_operation_and_magnitude() -> None:
    policy = Policy("trivial", (8, 8), torch.zeros(1, 3, 1, 1))
    assert policy.maps.shape == (len(OPERATIONS) * BINS * 2, 6)
    assert policy.values.shape == (len(OPERATIONS) * BINS * 2,)
