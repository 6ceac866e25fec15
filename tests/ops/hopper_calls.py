"""Calls that Hopper's own kernels are asked for, as tests make them."""

from functools import partial

import pytest
import torch

from saccade.ops._triton.launch import is_dry_run
from saccade.ops.taylor.triton.shapes import Problem
from tests.ops.fused_taylor import draw, draw_shift, equation, fused, fused_shift, shift_equation
from tests.ops.mechanisms import assert_as_good_as_plain

both_widths = pytest.mark.parametrize("dim", [64, 128])
both_kinds = pytest.mark.parametrize("normalized", [False, True], ids=["plain", "normalized"])


def on_hopper(test):
    """Only on a card that has the kernels."""
    other = torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0)
    return pytest.mark.gpu(pytest.mark.skipif(other, reason="needs a Hopper GPU")(test))


def projected(batch=2, heads=3, tokens=1024, dim=64, padding=0, **like):
    """q, k and v (B, H, N, D) as they come out of a qkv projection, of the same storage."""
    rows = torch.empty(batch, tokens, 3 * heads * dim + padding, **like)
    return rows[..., : 3 * heads * dim].unflatten(2, (3, heads, dim)).permute(2, 0, 3, 1, 4)


def nowhere(*, dtype=torch.bfloat16, **shape):
    return projected(device="meta", dtype=dtype, **shape)


def random_projection(*, seed=0, **shape):
    generator = torch.Generator("cuda").manual_seed(seed)
    q, k, v = projected(device="cuda", dtype=torch.bfloat16, **shape)
    for x in (q, k, v):
        x.normal_(generator=generator)
    return q, k, v


def problem_of(q, k, v, *, mask=None, temperature=None):
    normalized = temperature is not None
    return Problem.of(q, k, v, mask, temperature, 0.1, 0.5, 1.0, 1.0, normalized, "ieee")


def normalized_problem(*qkv):
    """TaylorShift's, each head with a temperature of its own."""
    heads, device = qkv[0].shape[1], qkv[0].device
    return problem_of(*qkv, temperature=torch.linspace(0.5, 4.0, heads, device=device))


def noting(forms, form, launch):
    """The launch, which notes its form; not where launches are only dry_run."""

    def noted(*tensors):
        if not is_dry_run():
            forms.append(form)
        launch(*tensors)

    return noted


def held_to_plain_torch(dim, normalized, shape):
    run, make = (fused, draw) if not normalized else (fused_shift, draw_shift)
    plain = shift_equation if normalized else equation
    # Of a temperature there is one number a head: a few of them can be exact by luck.
    draws = 8 if normalized and shape["queries"] < 1024 else 2
    made = partial(make, dim=dim, **shape)
    assert_as_good_as_plain(partial(run, "direct"), plain, made, torch.bfloat16, draws=draws)
