"""The residual addition and the layer norm after it in one kernel.

In float32 without a GPU, where the interpreter computes it exactly; on one in bfloat16. Mixed
dtypes in both, by their distance from the equation: the interpreter cuts bfloat16 off.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from saccade.ops.norm.reference import add_norm_reference
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops.norm import triton as norm_triton
from saccade.ops.norm.triton import api

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
EPS = 1e-2  # large enough to be missed
SHAPES = {
    "tokens of CIFAR-10": (3, 64, 256),
    "one token": (2, 1, 48),
    "a token less": (2, 63, 20),
    "a class token": (2, 65, 256),
    "walks of several steps": (2, 33, 520),
    "a row a tile": (2, 5, 1100),
}


def draw(seed, shape, branched=True, kept=True):
    """x, branch, keep, weight and bias in float64."""
    generator = torch.Generator().manual_seed(seed)
    size = {"generator": generator, "dtype": torch.float64}
    x, branch = 2 + torch.randn(shape, **size), torch.randn(shape, **size)
    weight, bias = 1 + torch.randn(shape[2], **size) / 4, torch.randn(shape[2], **size)
    keep = 1.25 * (torch.arange(shape[0]) % 2).double()
    return [x, branch if branched else None, keep if branched and kept else None, weight, bias]


def together(s, y):
    """Both results in one tensor, for gradients of both."""
    return torch.stack([s, y.to(s.dtype)])


def fused(x, branch, keep, weight, bias, *, eps=EPS, dtype=None):
    moved = [t if t is None else t.to(DEVICE) for t in (x, branch, keep, weight, bias)]
    s, y = norm_triton.fused(*moved, eps=eps, dtype=dtype or x.dtype)
    return s.to(x.device), y.to(x.device)


def both(function, keep, *inputs):
    """The results of a function of all inputs but keep, which gets no gradient."""
    x, *branch, weight, bias = inputs
    keep = keep if keep is None else keep.to(x.dtype)
    return together(*function(x, *(branch or [None]), keep, weight, bias))


def halves(shape, branched=True, kept=True):
    """What is compared, the equation, and what draws the inputs that have gradients."""

    def make(seed):
        x, branch, _, weight, bias = draw(seed, shape, branched)
        return [x, *([branch] if branched else []), weight, bias]

    keep = draw(0, shape, branched, kept)[2]
    equation = partial(add_norm_reference, eps=EPS)
    return partial(both, fused, keep), partial(both, equation, keep), make


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "whole"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sum_and_norm_are_as_good_as_plain_torch(shape, kept):
    assert_as_good_as_plain(*halves(shape, kept=kept), DTYPE, draws=4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_norm_alone_is_as_good_as_plain_torch(shape):
    assert_as_good_as_plain(*halves(shape, branched=False), DTYPE, draws=4)


def test_where_only_the_norm_is_used_it_is_as_good_as_plain_torch():
    keep = draw(0, (2, 65, 48))[2]

    def norm_of(function, x, branch, weight, bias):
        return function(x, branch, keep.to(x.dtype), weight, bias)[1]

    equation = partial(add_norm_reference, eps=EPS)
    paths = (partial(norm_of, fused), partial(norm_of, equation))
    assert_as_good_as_plain(*paths, halves((2, 65, 48))[2], DTYPE, draws=4)


def test_where_only_the_sum_is_used_gradients_pass_through():
    x, branch, keep, weight, bias = (t.to(DTYPE) for t in draw(0, (2, 9, 48)))
    leaves = [t.requires_grad_() for t in (x, branch, weight, bias)]
    s, _ = fused(x, branch, keep, weight, bias)
    direction = torch.randn_like(s)
    dx, dbranch, dweight, dbias = torch.autograd.grad(s, leaves, direction)
    assert torch.equal(dx, direction)
    assert torch.equal(dbranch, keep[:, None, None] * direction)
    assert not dweight.any()
    assert not dbias.any()


def test_nothing_is_lost_to_a_large_mean():
    x, _, _, weight, bias = (t if t is None else t.float() for t in draw(0, (2, 9, 64), False))
    shifted = x + 4096
    expected = F.layer_norm(shifted.double(), (64,), weight.double(), bias.double(), EPS)
    torch.testing.assert_close(
        fused(shifted, None, None, weight, bias)[1].double(), expected, atol=1e-3, rtol=0
    )


def mixed_gradients(function, inputs, stream, branch_dtype):
    x, branch, keep, weight, bias = inputs
    leaves = [x.to(stream), branch.to(branch_dtype), weight.to(stream), bias.to(stream)]
    leaves = [t.detach().requires_grad_() for t in leaves]
    s, y = function(leaves[0], leaves[1], keep.to(stream), *leaves[2:])
    grads = [torch.randn(s.shape, generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    directions = [g.bfloat16().to(t.dtype) for g, t in zip(grads, (s, y), strict=True)]
    return [s, y, *torch.autograd.grad([s, y], leaves, directions)]


@pytest.mark.parametrize("shape", [(2, 64, 256), (2, 63, 48)])
def test_a_float32_stream_with_bfloat16_branches(shape):
    inputs = draw(0, shape)
    inputs[1] = inputs[1].bfloat16()
    actual = mixed_gradients(
        partial(fused, dtype=torch.bfloat16), inputs, torch.float32, torch.bfloat16
    )
    plain = partial(add_norm_reference, eps=EPS)
    exact = mixed_gradients(plain, inputs, torch.float64, torch.float64)
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, *[torch.float32] * 2]
    assert [t.dtype for t in actual] == dtypes
    for one, other in zip(actual, exact, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 2 * torch.finfo(one.dtype).eps


def test_what_nobody_uses_of_the_sum_is_not_read(monkeypatch):
    read = []
    launch_of = api.backward_launch.__wrapped__

    def noted(*arguments):
        launch = launch_of(*arguments)
        return type("Noted", (), {"grid": launch.grid, "__call__": lambda _, *t: note(launch, t)})()

    def note(launch, tensors):
        read.append(tensors[1])
        launch(*tensors)

    monkeypatch.setattr(api, "backward_launch", noted)
    x, branch, keep, weight, bias = (t.to(DTYPE) for t in draw(0, (2, 9, 16)))
    x.requires_grad_()
    for results in (slice(1, 2), slice(0, 2)):
        outputs = fused(x, branch, keep, weight, bias)[results]
        torch.autograd.grad(outputs, x, [torch.ones_like(t) for t in outputs])
    assert read[0] is None
    assert read[1] is not None


def gradients(inputs, directions, keep):
    leaves = [t.detach().requires_grad_() for t in inputs]
    s, y = fused(*leaves[:2], keep, *leaves[2:])
    return [s, y, *torch.autograd.grad([s, y], leaves, directions)]


def test_gradients_and_inputs_may_lie_otherwise():
    x, branch, keep, weight, bias = (t.to(DTYPE) for t in draw(0, (2, 33, 48)))
    ds, dy = (t.to(DTYPE) for t in draw(1, (2, 33, 48))[:2])
    plain = gradients([x, branch, weight, bias], [ds, dy], keep)
    turned = [t.mT.contiguous().mT for t in (x, branch)]
    apart = torch.stack([keep, keep], dim=1)[:, 0]
    strided = gradients([*turned, weight, bias], [t.mT.contiguous().mT for t in (ds, dy)], apart)
    assert all(torch.equal(one, other) for one, other in zip(plain, strided, strict=True))


def test_the_same_bits_every_time():
    x, branch, keep, weight, bias = (t.to(DTYPE) for t in draw(0, (5, 64, 256)))
    first, again = (gradients([x, branch, weight, bias], [branch, x], keep) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_without_a_branch_the_sum_is_x():
    x, _, _, weight, bias = (t if t is None else t.to(DEVICE) for t in draw(0, (2, 9, 16), False))
    x, weight, bias = x.to(DTYPE).requires_grad_(), weight.to(DTYPE), bias.to(DTYPE)
    s, y = norm_triton.fused(x, None, None, weight, bias, eps=EPS, dtype=DTYPE)
    assert s is x
    (alone,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (whole,) = torch.autograd.grad(y.sum() + 3 * s.sum(), x)
    torch.testing.assert_close(whole, alone + 3)


@pytest.mark.parametrize("branched", [True, False])
def test_no_samples(branched):
    x = torch.empty(0, 9, 16, dtype=DTYPE, requires_grad=True)
    branch, keep = (x.detach(), torch.empty(0)) if branched else (None, None)
    weight, bias = (torch.ones(16, requires_grad=True) for _ in range(2))
    s, y = fused(x, branch, keep, weight, bias)
    dx, *shared = torch.autograd.grad(s.sum() + y.sum(), (x, weight, bias))
    assert s.shape == y.shape == dx.shape == x.shape
    assert all(torch.equal(grad, torch.zeros(16)) for grad in shared)


def wrong_eps(launch):
    *sizes, _ = launch.numbers
    launch.numbers = (*sizes, 0.1)


def wrong_span(launch):
    *sizes, span = launch.numbers
    launch.numbers = (*sizes, span - launch.constants["ROWS"])


def wrong_tokens(launch):
    rows, tokens, *rest = launch.numbers
    launch.numbers = (rows, 2 * tokens, *rest)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("forward_launch", wrong_eps),
        ("forward_launch", wrong_tokens),
        ("backward_launch", wrong_span),
        ("backward_launch", wrong_tokens),
    ],
)
def test_an_error_is_caught(name, plant, monkeypatch):
    launch_of = getattr(api, name).__wrapped__

    def planted(*arguments):
        launch = launch_of(*arguments)
        plant(launch)
        return launch

    monkeypatch.setattr(api, name, planted)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(*halves((3, 64, 256)), DTYPE, draws=1)


def test_a_gradient_without_its_mean_is_caught(monkeypatch):
    run = api._backward.function

    def planted(inputs):
        dy, ds, s, *rest = inputs
        dx, *others = run(dy, ds, s, *rest)
        weight = rest[1]
        return [dx + (dy * weight).mean(-1, keepdim=True) * rest[0][1].unsqueeze(-1), *others]

    monkeypatch.setattr(api._backward, "within_backward", planted)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(*halves((2, 9, 48), branched=False), DTYPE, draws=1)
