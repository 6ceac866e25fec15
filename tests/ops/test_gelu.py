"""GELU without erf: as good as torch's in half precision, values and slopes."""

import math

import pytest
import torch
import torch.nn.functional as F

from saccade.ops import gelu as module
from saccade.ops.gelu import gelu, gelu_without_erf
from tests.ops.mechanisms import assert_as_good_as_plain

HALVES = [torch.bfloat16, torch.float16]


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return [4 * torch.randn(4096, generator=generator, dtype=torch.float64)]


@pytest.mark.parametrize("dtype", HALVES)
def test_it_is_as_good_as_torch(dtype):
    assert_as_good_as_plain(gelu_without_erf, F.gelu, draw, dtype, draws=4)


def test_one_wrong_coefficient_is_caught(monkeypatch):
    monkeypatch.setattr(module, "C", (*module.C[:4], module.C[4] + 0.05))
    with pytest.raises(AssertionError, match="allowed"):
        assert_as_good_as_plain(gelu_without_erf, F.gelu, draw, torch.bfloat16, draws=4)


def test_relative_errors_are_as_said_everywhere():
    x = torch.linspace(-12, 12, 100_001, dtype=torch.float32).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, expected = gelu_without_erf(x), 0.5 * exact * torch.special.erfc(-exact / math.sqrt(2))
    assert ((y - expected).abs() <= 5e-5 * expected.abs()).all()
    (slope,) = torch.autograd.grad(y.sum(), x)
    (expected_slope,) = torch.autograd.grad(expected.sum(), exact)
    assert (slope - expected_slope).abs().max() < 3e-5


@pytest.mark.parametrize("dtype", HALVES)
def test_ends_of_the_range_stay_finite(dtype):
    x = torch.tensor([-torch.finfo(dtype).max, -100, 0, 100, torch.finfo(dtype).max], dtype=dtype)
    x.requires_grad_()
    y = gelu_without_erf(x)
    assert y.tolist() == [0, 0, 0, 100, torch.finfo(dtype).max]
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.tolist() == [0, 0, 0.5, 1, 1]


def test_torchs_own_is_taken_outside_of_compiled_code_for_a_gpu():
    x = torch.randn(100, dtype=torch.bfloat16)
    assert torch.equal(gelu(x), F.gelu(x))
    assert torch.equal(gelu(x, "tanh"), F.gelu(x, approximate="tanh"))


def test_a_compiler_takes_it_whole():
    x = torch.randn(1000, dtype=torch.bfloat16, requires_grad=True)
    direction = torch.randn_like(x)
    results = []
    for function in (gelu_without_erf, torch.compile(gelu_without_erf, fullgraph=True)):
        y = function(x)
        results += [[y, *torch.autograd.grad(y, x, direction)]]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
