"""GELU (arXiv:1606.08415), y = x Phi(x), for compilers to fuse if y is in half precision.

    Phi(-|x|) = exp(-x^2 / 2) (c1 t + ... + c5 t^5),   t = 1 / (1 + p |x|)
    dy/dx = Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi)

CUDA's erf takes longer than reading x from memory, and the derivative needs an exponential as well.
Here both use one exponential. p and c were fitted to minimize the relative error of Phi(-|x|),
which is 4e-5 down to x = -12 (where Phi is 2e-33): a fiftieth of bfloat16's rounding error and a
twelfth of float16's. Everything is computed in float32. Any layout.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.ops.backends import is_compiled_for_gpu

__all__ = ["gelu", "gelu_without_erf"]

P = 0.3778295
C = (0.150324726, 0.157412398, 0.089536176, 0.192288703, -0.089562003)


def gelu(x: Tensor, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """GELU by the fastest path: torch's, except for half precision in code compiled for a GPU."""
    is_half = x.dtype in (torch.bfloat16, torch.float16)
    if approximate == "none" and is_half and is_compiled_for_gpu(x):
        return gelu_without_erf(x)
    return F.gelu(x, approximate=approximate)


def gelu_without_erf(x: Tensor) -> Tensor:
    """GELU by the formula above; its many operations are slow unless they are fused."""
    out: Tensor = _GeluWithoutErf.apply(x)  # type: ignore[no-untyped-call]
    return out


class _GeluWithoutErf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        value = x.float()
        share, _ = _normal(value)
        return (value * share).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        value = x.float()
        share, bell = _normal(value)
        slope = share + value * bell * (1 / math.sqrt(2 * math.pi))
        pulled: Tensor = grad.float() * slope
        return pulled.to(x.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Phi(x) and exp(-x^2 / 2)."""
    bell = torch.exp(-0.5 * x * x)
    t = torch.reciprocal(1 + P * x.abs())
    series = C[4] * t + C[3]
    for coefficient in C[2::-1]:
        series = series * t + coefficient
    tail = bell * (series * t)
    return torch.where(x < 0, tail, 1 - tail), bell
