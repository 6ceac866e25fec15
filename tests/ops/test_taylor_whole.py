"""One program for a whole head: which calls it takes, and that it computes what the others do.

In float32 without a GPU, where the interpreter computes it exactly; on one in bfloat16.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from saccade.ops import taylor_attention
from tests.ops.fused_taylor import (
    DEVICE,
    draw,
    draw_shift,
    equation,
    fused,
    fused_shift,
    shift_equation,
)
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops.taylor.triton import operators, whole
from saccade.ops.taylor.triton.problem import Problem

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32

SHAPES = {
    "tokens of CIFAR-10": {"queries": 64, "dim": 32},
    "and a class token": {"queries": 65, "dim": 32},
    "longest and widest": {"queries": 128, "dim": 32},
    "one query": {"queries": 1, "keys": 17, "dim": 8},
    "masked": {"queries": 50, "keys": 63, "dim": 20, "width": 24, "masked": True},
    "odd": {"queries": 30, "keys": 64, "dim": 17, "width": 31, "masked": True},
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def form(queries=64, keys=64, dim=32, dtype=torch.bfloat16, masked=False):
    q, k, v = (torch.empty(2, 3, n, dim, dtype=dtype) for n in (queries, keys, keys))
    mask = torch.ones(2, keys, dtype=torch.bool) if masked else None
    return Problem.of(q, k, v, mask, None, 1.0, 0.5, 1.0, 1.0, False, "ieee").form


@pytest.fixture
def calls(monkeypatch):
    """How often each way was gone; dtypes that a program does not take on a GPU go there too."""
    seen = []

    def watched(name):
        run = getattr(operators, name)
        monkeypatch.setattr(
            operators, name, lambda *args, **options: seen.append(name) or run(*args, **options)
        )

    for name in ("run_whole", "run_whole_backward", "run_direct", "run_direct_backward"):
        watched(name)
    taken = operators.is_whole
    monkeypatch.setattr(
        operators, "is_whole", lambda f: taken(replace(f, dtype=torch.bfloat16)), raising=True
    )
    return seen


@shapes
def test_it_is_as_good_as_plain_torch(shape, calls):
    make = partial(draw, batch=2, heads=2, **shape)
    assert_as_good_as_plain(partial(fused, "direct"), equation, make, DTYPE, draws=4)
    assert set(calls) == {"run_whole", "run_whole_backward"}


@shapes
def test_normalisation_and_temperature(shape, calls):
    make = partial(draw_shift, batch=2, heads=24, **shape)
    assert_as_good_as_plain(partial(fused_shift, "direct"), shift_equation, make, DTYPE, draws=2)
    assert set(calls) == {"run_whole", "run_whole_backward"}


def test_a_sample_without_keys_gives_zeros(calls):
    q, k, v, mask = draw(0, batch=2, heads=2, queries=9, keys=20, dim=8, masked=True)
    mask[1] = False
    inputs = [x.to(DTYPE).requires_grad_() for x in (q, k, v)]
    out = fused("direct", *inputs, mask)
    assert out[1].count_nonzero() == 0
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert grad.isfinite().all()
        assert grad[1].count_nonzero() == 0
    assert "run_whole" in calls


def test_inputs_are_read_where_a_projection_left_them(calls):
    wide = torch.randn(2, 33, 3, 4, 16, dtype=DTYPE, device=DEVICE)
    strided = [x.detach().requires_grad_() for x in wide.permute(2, 0, 3, 1, 4)]
    copied = [x.detach().contiguous().requires_grad_() for x in strided]
    run = partial(taylor_attention, algorithm="direct", backend="triton")
    grad = torch.randn(2, 33, 4, 16, dtype=DTYPE, device=DEVICE).transpose(1, 2)
    results = []
    for inputs in (strided, copied):
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, grad)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert calls.count("run_whole_backward") == 2


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"queries": 128, "keys": 128}, True),
        ({"queries": 129}, False),
        ({"keys": 129}, False),
        ({"masked": True}, True),
        ({"queries": 65, "masked": True}, False),
        ({"dim": 40}, False),
        ({"dtype": torch.float32}, False),
        ({"dtype": torch.float16}, False),
    ],
)
def test_which_calls_it_takes(changes, taken):
    assert whole.is_whole(form(**changes)) is taken


def test_longer_rows_go_the_other_way(calls):
    q, k, v, _ = draw(0, batch=1, heads=1, queries=130, dim=8)
    fused("direct", *(x.to(DTYPE) for x in (q, k, v)), None)
    assert calls == ["run_direct"]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="bfloat16 kernels of both kinds need a GPU")
def test_both_ways_agree(monkeypatch):
    q, k, v = torch.randn(3, 16, 8, 65, 32, dtype=torch.bfloat16, device=DEVICE)
    run = partial(taylor_attention, algorithm="direct", backend="triton")
    one = run(q, k, v)
    monkeypatch.setattr(operators, "is_whole", lambda _: False)
    torch.testing.assert_close(one, run(q, k, v), rtol=2e-2, atol=2e-3)
