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
from tests.ops.graphs import assert_replayed_alike
from tests.ops.mechanisms import assert_as_good_as_plain

pytest.importorskip("triton")

from saccade.ops.taylor.triton import api, direct_single_block
from saccade.ops.taylor.triton.shapes import Problem, within_reach

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32

SHAPES = {
    "tokens of CIFAR-10": {"queries": 64, "dim": 32},
    "one query": {"queries": 1, "keys": 17, "dim": 8},
    "masked": {"queries": 50, "keys": 63, "dim": 20, "width": 24, "masked": True},
    "odd": {"queries": 30, "keys": 64, "dim": 17, "width": 31, "masked": True},
}
LONG_SHAPES = {
    "and a class token": {"queries": 65, "dim": 32},
    "longest": {"queries": 128, "dim": 32},
    "fewer keys": {"queries": 100, "keys": 9, "dim": 16},
    "fewer queries": {"queries": 9, "keys": 100, "dim": 24},
}


def form(queries=64, keys=64, dim=32, dtype=torch.bfloat16, masked=False, normalized=False):
    q, k, v = (torch.empty(2, 3, n, dim, dtype=dtype) for n in (queries, keys, keys))
    mask = torch.ones(2, keys, dtype=torch.bool) if masked else None
    temperature = torch.ones(3) if normalized else None
    return Problem.of(q, k, v, mask, temperature, 1.0, 0.5, 1.0, 1.0, False, "ieee").call


@pytest.fixture
def calls(monkeypatch):
    """How often each way was gone; dtypes that a program does not take on a GPU go there too."""
    seen = []

    def watched(name):
        run = getattr(api, name)
        monkeypatch.setattr(
            api, name, lambda *args, **options: seen.append(name) or run(*args, **options)
        )

    for name in (
        "run_single_block",
        "run_single_block_backward",
        "run_direct",
        "run_direct_backward",
    ):
        watched(name)
    taken = api.is_single_block
    monkeypatch.setattr(api, "is_single_block", lambda f: taken(replace(f, dtype=torch.bfloat16)))
    return seen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_is_as_good_as_plain_torch(shape, calls):
    make = partial(draw, batch=2, heads=2, **shape)
    assert_as_good_as_plain(partial(fused, "direct"), equation, make, DTYPE, draws=4)
    assert set(calls) == {"run_single_block", "run_single_block_backward"}


@pytest.mark.parametrize(
    "shape", [*SHAPES.values(), *LONG_SHAPES.values()], ids=[*SHAPES, *LONG_SHAPES]
)
def test_normalization_and_temperature(shape, calls):
    make = partial(draw_shift, batch=2, heads=24, **shape)
    assert_as_good_as_plain(partial(fused_shift, "direct"), shift_equation, make, DTYPE, draws=2)
    assert set(calls) == {"run_single_block", "run_single_block_backward"}


def test_a_sample_without_keys_gives_zeros(calls):
    q, k, v, mask = draw(0, batch=2, heads=2, queries=9, keys=20, dim=8, masked=True)
    mask[1] = False
    inputs = [x.to(DTYPE).requires_grad_() for x in (q, k, v)]
    out = fused("direct", *inputs, mask)
    assert out[1].count_nonzero() == 0
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert grad.isfinite().all()
        assert grad[1].count_nonzero() == 0
    assert "run_single_block" in calls


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
    assert calls.count("run_single_block_backward") == 2


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"queries": 65}, False),
        ({"keys": 65}, False),
        ({"masked": True}, True),
        ({"normalized": True, "queries": 128, "keys": 128}, True),
        ({"normalized": True, "queries": 129}, False),
        ({"normalized": True, "keys": 129}, False),
        ({"normalized": True, "masked": True}, True),
        ({"normalized": True, "masked": True, "queries": 65}, False),
        ({"dim": 40}, False),
        ({"dtype": torch.float32}, False),
        ({"dtype": torch.float16}, False),
    ],
)
def test_which_calls_it_takes(changes, taken):
    assert direct_single_block.is_single_block(form(**changes)) is taken


def test_longer_rows_go_the_other_way(calls):
    q, k, v, _ = draw(0, batch=1, heads=1, queries=130, dim=8)
    fused("direct", *(x.to(DTYPE) for x in (q, k, v)), None)
    assert calls == ["run_direct"]


def gradients(grad, *inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = taylor_attention(*leaves, algorithm="direct", backend="triton")
    return [out, *torch.autograd.grad(out, leaves, grad(out))]


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (1, 1, 33, 1), (2, 4, 1, 16)])
def test_gradients_that_are_expanded_are_read_as_they_are(size, calls):
    inputs = torch.randn(3, 2, 4, 33, 16, dtype=DTYPE, device=DEVICE)
    given = torch.randn(size, dtype=DTYPE, device=DEVICE)
    expanded = gradients(lambda out: given.expand_as(out), *inputs)
    copied = gradients(lambda out: given.expand_as(out).contiguous(), *inputs)
    for one, other in zip(expanded, copied, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert calls.count("run_single_block_backward") == 2


def _halve_the_constant(launch):
    *sizes, (*rest, c, lift) = launch.numbers
    launch.numbers = (*sizes, (*rest, c / 2, lift))


def _forget_the_lengths(launch):
    launch.constants["FLAGS"] = launch.constants["FLAGS"]._replace(NORMALIZE=False)


@pytest.mark.parametrize("plant", [_halve_the_constant, _forget_the_lengths])
def test_planted_errors_are_caught(plant, calls, monkeypatch):
    launch_of = direct_single_block._backward_launch.__wrapped__

    def planted(*arguments):
        launch = launch_of(*arguments)
        plant(launch)
        return launch

    monkeypatch.setattr(direct_single_block, "_backward_launch", planted)
    make = partial(draw_shift, batch=1, heads=3, queries=20, keys=30, dim=16)
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(
            partial(fused_shift, "direct"), shift_equation, make, DTYPE, draws=1
        )
    assert "run_single_block_backward" in calls


def test_rows_too_far_apart_are_copied():
    far = torch.empty(1, 1, 1, 8).expand(1, 1, 128, 8)
    assert within_reach(far) is far
    far = torch.empty_strided((1, 1, 2, 8), (1 << 25, 1 << 25, 1 << 24, 1), device="meta")
    assert within_reach(far).is_contiguous()
    near = torch.empty_strided((1, 1, 2, 8), (1 << 25, 1 << 25, (1 << 24) - 1, 1), device="meta")
    assert within_reach(near) is near


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="graphs are a GPU's")
def test_a_captured_graph_gives_the_same_again():
    inputs = torch.randn(3, 4, 8, 64, 32, dtype=torch.bfloat16, device=DEVICE)
    assert_replayed_alike(partial(gradients, torch.ones_like, *inputs))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="bfloat16 kernels of both kinds need a GPU")
def test_both_ways_agree(monkeypatch):
    inputs = torch.randn(3, 16, 8, 63, 32, dtype=torch.bfloat16, device=DEVICE)
    one = gradients(torch.ones_like, *inputs)
    monkeypatch.setattr(api, "is_single_block", lambda _: False)
    for x, y in zip(one, gradients(torch.ones_like, *inputs), strict=True):
        assert (x - y).float().norm() < 0.02 * y.float().norm()
