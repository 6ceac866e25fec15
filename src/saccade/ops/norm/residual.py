"""A residual addition and the layer norm that follows it, in one pass over memory.

    s = x + keep branch,   y = LayerNorm(s)

Layer norm: arXiv:1607.06450. Stochastic depth, whose factors keep are: arXiv:1603.09382. Layout
(B, N, C). Cost: forward reads x and branch and writes s and y; backward reads s and the gradients
of s and y and writes those of x and branch; each once.
"""

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.ops.backends import TRITON_INSTALLED, has_bfloat16, is_transformed

__all__ = ["add_norm"]

WIDEST = 2048
"""Channels that a program holds in registers."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def add_norm(
    x: Tensor,
    branch: Tensor | None,
    keep: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    eps: float,
) -> tuple[Tensor, Tensor] | None:
    """Add a branch to the residual stream and normalize the sum, if a kernel supports the call.

    Args:
        x: The residual stream (B, N, C).
        branch: Branch to add (B, N, C), in a dtype that does not change that of the sum; None for
            none.
        keep: Factor of each sample's branch (B,), which gets no gradient; None for 1.
        weight: Factor of each channel (C,).
        bias: Added to each channel (C,).
        eps: Added to the variance.

    Returns:
        The sum in the dtype of x (x itself without a branch), and the normalized sum, in bfloat16
        under bfloat16 autocast, else in the dtype of x. None if no kernel supports the call.
    """
    if keep is not None and keep.shape != x.shape[:1]:
        raise ConfigError(
            f"keep must have shape ({x.shape[0]},), one factor per sample, got {tuple(keep.shape)}"
        )
    if weight is None or bias is None or not _takes(x, branch, weight, bias):
        return None
    from saccade.ops.norm import triton

    return triton.fused(x, branch, keep, weight, bias, eps=eps, dtype=_normalized_dtype(x))


def _takes(x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor) -> bool:
    """True if the kernels support these tensors and return what torch would."""
    if not x.is_cuda or not TRITON_INSTALLED or not has_bfloat16(x.get_device()):
        return False
    if is_transformed() or x.dim() != 3 or not 0 < x.shape[-1] <= WIDEST:
        return False
    if any(t.dtype not in _DTYPES for t in (x, weight, bias)):
        return False
    if branch is None:
        return True
    return branch.shape == x.shape and torch.promote_types(x.dtype, branch.dtype) == x.dtype


def _normalized_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    lowered = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if lowered else x.dtype
