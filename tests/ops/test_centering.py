"""`center_keys`: softmax does not change by it, Taylor comes nearer, every path takes it."""

import pytest
import torch

from saccade.layers import create_core
from saccade.ops import softmax_attention, taylor_attention
from saccade.ops.centering import centered_keys
from saccade.ops.softmax import softmax_weights
from saccade.ops.softmax.reference import softmax_attention_reference
from saccade.ops.taylor import taylor_weights, taylorshift_attention
from saccade.ops.taylor.reference import taylor_attention_reference
from tests.ops.mechanisms import assert_as_good_as_plain, make_inputs, with_gradients

SHIFT = 0.7


def shifted(masked: bool = False, **shape):
    """Inputs whose keys share a direction, as those of trained models do."""
    q, k, v, mask = make_inputs(masked=masked, **shape)
    return q, k + SHIFT * k[:, :, :1], v, mask


def plain_center(k, mask):
    kept = torch.ones_like(k[:, 0, :, 0]) if mask is None else mask.to(k.dtype)
    mean = (k * kept[:, None, :, None]).sum(2) / kept.sum(1)[:, None, None]
    return k - mean[:, :, None]


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_does_not_change(masked):
    q, k, v, mask = shifted(masked)
    expected = with_gradients(
        lambda q, k, v: softmax_attention_reference(q, k, v, scale=0.25, key_mask=mask),
        (q, k, v),
        torch.float64,
    )
    found = with_gradients(
        lambda q, k, v: softmax_attention(q, centered_keys(k, mask), v, scale=0.25, key_mask=mask),
        (q, k, v),
        torch.float64,
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_taylor_comes_nearer_to_softmax(masked):
    q, k, _, mask = shifted(masked)
    exact = softmax_weights(q, k, key_mask=mask)
    far, near = (
        (taylor_weights(q, k, key_mask=mask, center_keys=centered) - exact).abs().sum(-1).mean()
        for centered in (False, True)
    )
    assert near < 0.7 * far


def test_masked_keys_do_not_enter_the_mean():
    q, k, v, mask = shifted(masked=True)
    expected = taylor_attention(q, k, v, key_mask=mask, center_keys=True)
    k[~mask[:, None].expand(k.shape[:3])] = torch.nan
    found = taylor_attention(q, k, v, key_mask=mask, center_keys=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_sample_without_keys_gives_zero():
    q, k, v, mask = shifted(masked=True)
    mask[0] = False
    out = taylor_attention(q, k, v, key_mask=mask, center_keys=True)
    assert out[0].eq(0).all()
    assert out[1].isfinite().all()


def test_an_ignored_mask_is_caught():
    """Planted error: the mean over all keys, not those attended to."""

    def wrong(q, k, v, mask):
        return taylor_attention(q, centered_keys(k), v, key_mask=mask)

    def right(q, k, v, mask):
        return taylor_attention_reference(q, k, v, scale=0.25, key_mask=mask, center_keys=True)

    with pytest.raises(AssertionError):
        assert_as_good_as_plain(
            wrong, right, lambda seed: shifted(True, seed=seed), torch.float64, draws=2
        )


def test_low_precision_sums_in_float32():
    """2,000 keys with a mean far from 0: a bfloat16 sum would be off by a per cent."""
    _, k, _, _ = make_inputs(queries=2000, dim=4)
    k = (k + 30).bfloat16()
    mean = centered_keys(k).double().mean(2)
    assert mean.abs().max() < 0.01


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("algorithm", ["direct", "efficient"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_kernels_take_centered_keys(algorithm, dtype, masked):
    q, k, v, mask = (
        x if x is None or x.dtype == torch.bool else x.to(dtype)
        for x in shifted(masked, queries=33, heads=1)
    )
    found, expected = (
        taylor_attention(
            q, k, v, key_mask=mask, center_keys=True, algorithm=algorithm, backend=backend
        )
        for backend in ("triton", "torch")
    )
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["taylor", "taylorshift", "performer"])
def test_cores_are_those_of_centered_keys(name, masked):
    """Output, weights, dropout and gradients of the option, against keys centered beforehand."""
    q, k, v, mask = shifted(masked)
    options = {"feature_seed": 3} if name == "performer" else {}
    plain, centered = (
        create_core(name, 3, 16, options={**options, "center_keys": on}).double()
        for on in (False, True)
    )
    expected = with_gradients(
        lambda q, k, v: plain(q, plain_center(k, mask), v, key_mask=mask), (q, k, v), torch.float64
    )
    found = with_gradients(
        lambda q, k, v: centered(q, k, v, key_mask=mask), (q, k, v), torch.float64
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    weights = centered.attention_weights(q, k, key_mask=mask)
    torch.testing.assert_close(
        weights, plain.attention_weights(q, plain_center(k, mask), key_mask=mask)
    )
    different = plain(q, k, v, key_mask=mask)
    assert (different - expected[0]).norm() > 1e-3 * expected[0].norm()


def test_taylorshift_centers_before_it_divides_by_the_length():
    q, k, v, _ = shifted()
    tau = torch.linspace(0.5, 2, 3, dtype=torch.float64)
    found = taylorshift_attention(q, k, v, tau, center_keys=True)
    expected = taylorshift_attention(q, plain_center(k, None), v, tau)
    torch.testing.assert_close(found, expected)


def test_packed_calls_go_by_q_k_and_v():
    q, k, v, _ = shifted(queries=9)
    core = create_core("taylor", 3, 16, options={"center_keys": True}).double()
    packed = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2)
    assert core.attend_packed(packed) is None
    torch.testing.assert_close(core.packed(packed), core(q, k, v).transpose(1, 2))


def test_other_random_features_have_no_such_option():
    with pytest.raises(ValueError, match="unknown option of attention 'performer_relu'"):
        create_core("performer_relu", 2, 4, options={"center_keys": True})
