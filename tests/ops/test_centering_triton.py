"""Centered keys in one operator: spans, masks, strides, gradients, and what torch asks of it."""

import pytest
import torch

from saccade.ops.centering import centered_keys
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops.centering.triton.center import MIN_SPAN, _center, _spans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
SHAPES = {
    "two tokens": (2, 3, 2, 16),
    "a ViT of 224 px": (2, 3, 197, 20),
    "a step and one": (1, 2, 65, 64),
    "three spans": (1, 2, 2 * MIN_SPAN + 77, 5),
}


def draw(shape, seed, masked):
    """Keys that share a direction, in float64, and a mask that leaves out other keys each time."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(shape, generator=generator, dtype=torch.float64)
    k += 0.7 * torch.randn((*shape[:2], 1, shape[3]), generator=generator, dtype=torch.float64)
    if not masked:
        return k, None
    mask = torch.rand(shape[0], shape[2], generator=generator) < 0.7
    mask[:, 0] = True
    return k, mask


def equation(k, mask):
    kept = torch.ones(k.shape[0], k.shape[2]) if mask is None else mask
    kept = kept.to(k.dtype)[:, None, :, None]
    return k - (kept * k).sum(2, keepdim=True) / kept.sum(2, keepdim=True)


def fused(k, mask):
    moved = mask if mask is None else mask.to(DEVICE)
    return centered_keys(k.to(DEVICE), moved, backend="triton").to(k.device)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_keys_and_gradients_are_as_good_as_plain_torch(shape, masked):
    mask = draw(shape, 0, masked)[1]
    assert_as_good_as_plain(
        lambda k: fused(k, mask),
        lambda k: equation(k, mask),
        lambda seed: [draw(shape, seed, False)[0]],
        DTYPE,
        draws=3,
    )


def test_a_gradient_that_leaves_the_mask_out_is_caught():
    """Planted error: the backward pass subtracts the mean from masked keys too."""
    shape = SHAPES["a ViT of 224 px"]
    mask = draw(shape, 0, True)[1]

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k):
            return fused(k, mask)

        @staticmethod
        def backward(ctx, dy):
            return fused(dy, None)

    with pytest.raises(AssertionError):
        assert_as_good_as_plain(
            Wrong.apply,
            lambda k: equation(k, mask),
            lambda seed: [draw(shape, seed, False)[0]],
            DTYPE,
            draws=2,
        )


def test_keys_of_one_projection_are_read_where_they_lie():
    qkv = torch.randn(2, 70, 3, 4, 24, device=DEVICE)
    k = qkv[:, :, 1].transpose(1, 2)  # (B, H, N, D), not contiguous
    turned = torch.randn(2, 4, 24, 70, device=DEVICE).mT  # neither is its last dimension
    for keys in (k, turned):
        found = centered_keys(keys, backend="triton")
        torch.testing.assert_close(found, centered_keys(keys.contiguous(), backend="torch"))


def test_a_sample_without_keys_is_left_as_it_is():
    k, mask = draw((2, 1, 9, 8), 0, True)
    mask[0] = False
    k[1, :, ~mask[1]] = torch.nan
    out = fused(k.float(), mask)
    torch.testing.assert_close(out[0], k[0].float())
    assert out[1, :, mask[1]].isfinite().all()


def test_spans_cover_all_tokens():
    for heads in (1, 7, 6000):
        for tokens in (1, 64, MIN_SPAN, MIN_SPAN + 1, 16_384, 1_000_001):
            spans, span = _spans(heads, tokens)
            assert (spans - 1) * span < tokens <= spans * span
            assert 1 <= spans <= 128


@pytest.mark.parametrize("masked", [False, True])
def test_torch_accepts_the_operator(masked):
    k, mask = draw((2, 2, 17, 8), 0, masked)
    k = k.float().to(DEVICE).requires_grad_()
    torch.library.opcheck(_center.overload, (k, mask if mask is None else mask.to(DEVICE), False))


def test_an_empty_batch():
    assert fused(torch.zeros(0, 2, 5, 8), None).shape == (0, 2, 5, 8)
