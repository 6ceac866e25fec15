"""Addition of a branch to the residual stream, alone or fused with the layer norm that follows.

Compiled code for a GPU adds and normalizes in one kernel (`ops/norm`). Layout (B, N, C). `keep`
(B,) holds the factor of each sample's branch; None means 1 (stochastic depth, arXiv:1603.09382).
"""

from __future__ import annotations

from torch import Tensor, nn

from saccade.ops import norm as ops
from saccade.ops.backends import is_compiled_for_gpu

__all__ = ["add", "add_norm", "is_hooked"]


def add(x: Tensor, branch: Tensor | None, keep: Tensor | None) -> Tensor:
    """Add a branch to the residual stream; None for no branch."""
    if branch is None:
        return x
    if keep is not None:
        branch = (branch * keep[:, None, None]).to(branch.dtype)
    return x + branch


def add_norm(
    x: Tensor, branch: Tensor | None, keep: Tensor | None, norm: nn.Module
) -> tuple[Tensor, Tensor]:
    """Add a branch to the residual stream; return the sum and its layer norm."""
    if is_compiled_for_gpu(x) and type(norm) is nn.LayerNorm and not is_hooked(norm):
        fused = ops.add_norm(x, branch, keep, norm.weight, norm.bias, eps=norm.eps)
        if fused is not None:
            return fused
    x = add(x, branch, keep)
    return x, norm(x)


def is_hooked(module: nn.Module) -> bool:
    """True if forward or backward hooks are registered."""
    hooks = module._forward_hooks, module._forward_pre_hooks
    return any((*hooks, module._backward_hooks, module._backward_pre_hooks))
