"""`torch.func`, forward-mode differentiation and `torch.jit.trace` on every attention."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad

from saccade.errors import ConfigError
from saccade.ops import taylor_attention
from saccade.ops.taylor import taylorshift_attention
from tests.ops.mechanisms import MECHANISMS, fitted, make_inputs

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

every = pytest.mark.parametrize("name", MECHANISMS)
masks = pytest.mark.parametrize("masked", [False, True], ids=["all keys", "masked"])
SHAPE = {"batch": 3, "heads": 2, "queries": 4, "keys": 5, "dim": 3, "width": 2}


def fast_and_reference(name, mask, parameters):
    """Both as functions of q, k and v."""
    mechanism = MECHANISMS[name]
    return (
        lambda q, k, v: mechanism.fast(q, k, v, mask, *parameters),
        lambda q, k, v: mechanism.reference(q, k, v, mask, *parameters),
    )


def case(name, *, masked=False, **changes):
    """q, k and v in float64, the attention and its equation."""
    shape = fitted(MECHANISMS[name], SHAPE | changes)
    *qkv, mask = make_inputs(masked=masked, **shape)
    parameters = [p.double() for p in MECHANISMS[name].parameters(shape["heads"], shape["dim"])]
    return qkv, *fast_and_reference(name, mask, parameters)


def loss_of(attend):
    """A number that every output enters with its own weight."""

    def loss(*qkv):
        out = attend(*qkv)
        return (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum()

    return loss


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@every
@masks
def test_grad(name, masked):
    qkv, fast, reference = case(name, masked=masked)
    leaves = [x.clone().requires_grad_() for x in qkv]
    expected = torch.autograd.grad(loss_of(reference)(*leaves), leaves)
    close(torch.func.grad(loss_of(fast), argnums=(0, 1, 2))(*qkv), expected)
    out, pull_back = torch.func.vjp(fast, *qkv)
    close(out, reference(*qkv))
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    close(pull_back(weights), expected)


@every
@masks
def test_jvp(name, masked):
    qkv, fast, reference = case(name, masked=masked)
    tangents = tuple(torch.cos(7 * x) for x in qkv)
    expected = torch.func.jvp(reference, tuple(qkv), tangents)
    close(torch.func.jvp(fast, tuple(qkv), tangents), expected)
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(x, t) for x, t in zip(qkv, tangents, strict=True)]
        close(tuple(forward_ad.unpack_dual(fast(*dual))), expected)
    close(fast(*qkv), expected[0])  # once nothing is differentiated any more


@every
def test_whole_jacobians_and_second_derivatives(name):
    (q, k, v), fast, reference = case(name, batch=1, heads=1, queries=2, keys=3)
    expected = torch.func.jacrev(reference, argnums=(0, 1))(q, k, v)
    close(torch.func.jacrev(fast, argnums=(0, 1))(q, k, v), expected)
    close(torch.func.jacfwd(fast, argnums=(0, 1))(q, k, v), expected)
    close(
        torch.func.hessian(loss_of(fast))(q, k, v), torch.func.hessian(loss_of(reference))(q, k, v)
    )


@every
def test_vmap(name):
    (q, k, v), fast, reference = case(name)
    stacked = [torch.stack([x, x.flip(0), 2 * x], dim=1) for x in (q, k, v)]
    found = torch.vmap(fast, in_dims=1, out_dims=1)(*stacked)
    close(found, torch.stack([reference(*(x[:, i] for x in stacked)) for i in range(3)], dim=1))


@every
def test_gradients_of_each_sample(name):
    qkv, fast, reference = case(name)
    loss = loss_of(lambda *one: fast(*(x.unsqueeze(0) for x in one)))
    found = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*qkv)
    for i in range(SHAPE["batch"]):
        leaves = [x[i : i + 1].clone().requires_grad_() for x in qkv]
        expected = torch.autograd.grad(loss_of(reference)(*leaves), leaves)
        close([x[i : i + 1] for x in found], list(expected))


@every
def test_gradcheck_with_forward_mode_and_batches(name):
    qkv, fast, _ = case(name, batch=1, queries=2, keys=3)
    leaves = [x.requires_grad_() for x in qkv]
    assert torch.autograd.gradcheck(
        fast, leaves, check_forward_ad=True, check_batched_grad=True, fast_mode=True
    )


@pytest.mark.parametrize("algorithm", ["direct", "efficient"])
def test_masked_samples_and_half_precision(algorithm):
    q, k, v, mask = make_inputs(masked=True, **SHAPE)
    mask[0] = False
    run = loss_of(lambda q, k, v: taylor_attention(q, k, v, key_mask=mask, algorithm=algorithm))
    grads = torch.func.grad(run, argnums=(0, 1, 2))(q, k, v)
    assert all(not x[0].any() and x[1].any() for x in grads)
    low = torch.func.grad(run, argnums=(0, 1, 2))(*(x.bfloat16() for x in (q, k, v)))
    assert all(x.dtype == torch.bfloat16 for x in low)
    for x, exact in zip(low, grads, strict=True):
        assert (x.double() - exact).norm() < 0.02 * exact.norm()


def test_a_wrong_derivative_is_noticed():
    qkv, _, reference = case("taylor-direct")
    _, wrong, _ = case("taylor-direct-abc")
    tangents = tuple(torch.cos(7 * x) for x in qkv)
    pushed = [torch.func.jvp(f, tuple(qkv), tangents)[1] for f in (wrong, reference)]
    with pytest.raises(AssertionError):
        close(*pushed)


def test_kernels_that_were_asked_for_are_refused_with_one_line():
    q = torch.randn(1, 1, 4, 8)

    def loss(q):
        return taylor_attention(q, q, q, backend="triton").sum()

    message = "backend='triton' cannot run here: torch.func and forward-mode"
    with pytest.raises(ConfigError, match=message) as caught:
        torch.func.grad(loss)(q)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        torch.func.jvp(loss, (q,), (q,))


@pytest.mark.parametrize("algorithm", ["auto", "direct", "efficient"])
@pytest.mark.parametrize("tokens", [20, 300])  # on both sides of where `auto` changes
@pytest.mark.parametrize("shift", [False, True], ids=["plain", "shift"])
def test_traced_graphs_run_other_batches(shift, tokens, algorithm):
    temperature = torch.linspace(0.5, 2, 2, dtype=torch.float64)

    def attend(q, k, v):
        if not shift:
            return taylor_attention(q, k, v, algorithm=algorithm)
        return taylorshift_attention(
            q, k, v, temperature, algorithm=algorithm, normalize_output=True
        )

    def inputs(batch):
        shape = {"batch": batch, "heads": 2, "queries": tokens, "keys": tokens, "dim": 8}
        return tuple(make_inputs(**shape)[:3])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that become constants
        traced = torch.jit.trace(attend, inputs(2))
    for batch in (1, 2, 5):
        close(traced(*inputs(batch)), attend(*inputs(batch)))
