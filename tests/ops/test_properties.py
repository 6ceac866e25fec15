"""What must hold of every mechanism, whatever the numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.ops import taylor_attention
from tests.ops.mechanisms import MECHANISMS, draw

shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "queries": st.integers(1, 20),
        "keys": st.integers(1, 20),
        "dim": st.integers(1, 9),
        "width": st.integers(1, 9),
        "masked": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
few = settings(max_examples=12, deadline=None, derandomize=True)

# The taylorshift core multiplies its output by sqrt(N / D): its rows are not convex, and its
# output depends on how many keys there are, by design.
UNSCALED = [name for name in MECHANISMS if not name.startswith("taylorshift")]


def of_rows(*kinds):
    return [name for name in UNSCALED if MECHANISMS[name].entry.rows in kinds]


# These have parameters of their own for each head.
ALIKE_HEADS = [name for name in UNSCALED if name != "ftheta-mix"]


def close(x, y):
    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", of_rows("convex", "signed"))
@few
@given(shape=shapes)
def test_constant_values_come_back(name, shape):
    q, k, v, *rest = draw(MECHANISMS[name], **shape)
    close(
        MECHANISMS[name].fast(q, k, torch.ones_like(v), *rest),
        torch.ones(*q.shape[:3], v.shape[3]).double(),
    )


def map_of(name, shape):
    """The weights, as the output for v = identity, and the mask."""
    q, k, _, mask, *rest = draw(MECHANISMS[name], **shape)
    v = torch.eye(k.shape[2], dtype=torch.float64).expand(*k.shape[:2], -1, -1)
    return MECHANISMS[name].fast(q, k, v, mask, *rest), mask


@pytest.mark.parametrize("name", of_rows("convex"))
@few
@given(shape=shapes)
def test_rows_are_convex_weights(name, shape):
    weights, _ = map_of(name, shape)
    assert (weights >= -1e-12).all()
    close(weights.sum(dim=-1), torch.ones(weights.shape[:3]).double())


@pytest.mark.parametrize("name", of_rows("signed", "free"))
def test_rows_are_not_convex_where_the_registry_says_so(name):
    weights, _ = map_of(name, {"queries": 40, "dim": 4})
    assert (weights < -1e-6).any()


@pytest.mark.parametrize("name", of_rows("free"))
def test_rows_do_not_sum_to_one_where_the_registry_says_so(name):
    weights, _ = map_of(name, {"queries": 40, "dim": 4})
    assert ((weights.sum(dim=-1) - 1).abs() > 1e-6).any()


@pytest.mark.parametrize("name", UNSCALED)
@few
@given(shape=shapes)
def test_masked_keys_have_no_weight(name, shape):
    weights, mask = map_of(name, {**shape, "masked": True})
    assert (weights.abs().amax(dim=(1, 2))[~mask] == 0).all()


@pytest.mark.parametrize("name", [n for n in MECHANISMS if not MECHANISMS[n].entry.self_only])
@few
@given(shape=shapes)
def test_queries_do_not_see_each_other(name, shape):
    q, k, v, *rest = draw(MECHANISMS[name], **shape)
    order = torch.randperm(q.shape[2], generator=torch.Generator().manual_seed(shape["seed"]))
    run = MECHANISMS[name].fast
    close(run(q[:, :, order], k, v, *rest), run(q, k, v, *rest)[:, :, order])


ORDERED = [name for name in MECHANISMS if MECHANISMS[name].entry.ordered]


@pytest.mark.parametrize("name", ORDERED)
def test_keys_have_an_order_where_the_registry_says_so(name):
    """Tokens in another order give other outputs, not the same ones in that order."""
    q, k, v, _, *rest = draw(MECHANISMS[name], queries=40, dim=4)
    run, order = MECHANISMS[name].fast, torch.randperm(40)
    moved = run(*(x[:, :, order] for x in (q, k, v)), None, *rest)
    assert (moved - run(q, k, v, None, *rest)[:, :, order]).abs().max() > 1e-6


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in ORDERED])
@few
@given(shape=shapes)
def test_keys_and_values_have_no_order(name, shape):
    q, k, v, mask, *rest = draw(MECHANISMS[name], **shape)
    order = torch.randperm(k.shape[2], generator=torch.Generator().manual_seed(shape["seed"]))
    run = MECHANISMS[name].fast
    moved = run(q, k[:, :, order], v[:, :, order], None if mask is None else mask[:, order], *rest)
    close(moved, run(q, k, v, mask, *rest))


@every_mechanism
@few
@given(
    shape=shapes, padding=st.integers(1, 9), junk=st.sampled_from([0.0, 1e3, torch.nan, torch.inf])
)
def test_padded_equals_truncated(name, shape, padding, junk):
    shape = {**shape, "masked": False}
    q, k, v, _, *rest = draw(MECHANISMS[name], **shape)
    run = MECHANISMS[name].fast

    def pad(x, junk=junk):
        return torch.cat([x, x.new_full((*x.shape[:2], padding, x.shape[3]), junk)], dim=2)

    mask = torch.arange(k.shape[2] + padding).expand(k.shape[0], -1) < k.shape[2]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    query = pad(leaves[0], 1e3) if MECHANISMS[name].entry.self_only else leaves[0]
    padded = run(query, pad(leaves[1]), pad(leaves[2]), mask, *rest)[:, :, : q.shape[2]]
    plain = run(*leaves, None, *rest)
    close(padded, plain)
    for x, y in zip(
        torch.autograd.grad(padded.sum(), leaves),
        torch.autograd.grad(plain.sum(), leaves),
        strict=True,
    ):
        close(x, y)


@every_mechanism
@few
@given(shape=shapes)
def test_samples_are_independent(name, shape):
    q, k, v, mask, *rest = draw(MECHANISMS[name], **shape)
    run = MECHANISMS[name].fast
    whole = run(q, k, v, mask, *rest)
    for b in range(q.shape[0]):
        one = slice(b, b + 1)
        alone = run(q[one], k[one], v[one], None if mask is None else mask[one], *rest)
        close(whole[one], alone)


@pytest.mark.parametrize("name", ALIKE_HEADS)
@few
@given(shape=shapes)
def test_heads_are_independent(name, shape):
    q, k, v, mask, *rest = draw(MECHANISMS[name], **{**shape, "masked": False})
    run = MECHANISMS[name].fast
    whole = run(q, k, v, mask, *rest)
    heads_as_samples = [x.transpose(0, 1) for x in (q, k, v)]
    close(run(*heads_as_samples, None, *rest), whole.transpose(0, 1))


@few
@given(
    shape=shapes,
    a=st.floats(0.05, 4),
    b=st.floats(-2, 2),
    extra=st.floats(0.01, 2),
    scale=st.floats(-2, 2),
)
def test_direct_equals_efficient(shape, a, b, extra, scale):
    q, k, v, mask = draw(MECHANISMS["taylor-direct"], **shape)
    options = {"coefficients": (a, b, b * b / (4 * a) + extra), "scale": scale, "key_mask": mask}
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    direct = taylor_attention(*leaves, algorithm="direct", **options)
    efficient = taylor_attention(*leaves, algorithm="efficient", **options)
    close(direct, efficient)
    direction = torch.linspace(-1, 1, direct.numel(), dtype=torch.float64).view(direct.shape)
    for x, y in zip(
        torch.autograd.grad(direct, leaves, direction),
        torch.autograd.grad(efficient, leaves, direction),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-7)


@every_mechanism
@pytest.mark.parametrize("tokens", [1, 63, 65])
def test_awkward_lengths_and_strides(name, tokens):
    mechanism = MECHANISMS[name]
    q, k, v, mask, *rest = draw(mechanism, queries=tokens, dim=5, width=3, masked=True)
    expected = mechanism.reference(q, k, v, mask, *rest)
    packed = torch.cat([q, k], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)
    strided_v = torch.stack([v, v], dim=-1)[..., 0]
    strided = (packed[..., :5], packed[..., 5:], strided_v)
    assert not any(x.is_contiguous() for x in strided)
    actual = mechanism.fast(*strided, mask, *rest)
    close(actual, expected)


@every_mechanism
def test_empty_batch(name):
    mechanism = MECHANISMS[name]
    q, k, v, mask, *rest = draw(mechanism, masked=True)
    leaves = [x[:0].clone().requires_grad_() for x in (q, k, v)]
    out = mechanism.fast(*leaves, mask[:0], *rest)
    assert out.shape == (0, *q.shape[1:3], v.shape[3])
    out.sum().backward()
    assert all(x.grad.shape == x.shape for x in leaves)


@every_mechanism
def test_a_sample_without_keys_gets_zero_and_finite_gradients(name):
    mechanism = MECHANISMS[name]
    q, k, v, mask, *rest = draw(mechanism, masked=True)
    mask[1] = False
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = mechanism.fast(*leaves, mask, *rest)
    assert (out[1] == 0).all()
    close(out[:1], mechanism.fast(q[:1], k[:1], v[:1], mask[:1], *rest))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    assert all((x.grad[1] == 0).all() for x in leaves)
