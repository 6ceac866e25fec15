"""Whether linear attention runs fused on the GPU (Triton) or in plain torch."""

from importlib.util import find_spec
from typing import get_args

import torch
from torch import Tensor

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops.arguments import Backend

__all__ = ["runs_fused"]

MAX_WIDTH = 128

_TRITON_INSTALLED = find_spec("triton") is not None


def runs_fused(
    backend: Backend, v: Tensor, *, head_dim: int | None = None, projection: Tensor | None = None
) -> bool:
    """Decide between the fused kernels and torch.

    `auto` takes the kernels for what is on a GPU and within their limits. `triton` that cannot run
    raises, with the reason; on the CPU it runs in Triton's interpreter, if that is switched on.

    Args:
        backend: What the caller asked for.
        v: The values.
        head_dim: D, where features are computed in the kernel.
        projection: W, where features are computed in the kernel.
    """
    if backend not in get_args(Backend):
        raise UnknownNameError("backend", str(backend), get_args(Backend))
    if backend == "torch" or (backend == "auto" and not v.is_cuda):
        return False
    obstacle = _obstacle(v, head_dim, projection)
    if obstacle is not None and backend == "triton":
        raise ConfigError(f"backend='triton' cannot run here: {obstacle}; use 'auto' or 'torch'")
    return obstacle is None


def _obstacle(v: Tensor, head_dim: int | None, projection: Tensor | None) -> str | None:
    """Why the kernels cannot run, if they cannot."""
    if not _TRITON_INSTALLED:
        return "triton is not installed (pip install 'saccade[triton]')"
    if v.dtype == torch.float64:
        return "it has no float64"
    if v.shape[-1] > MAX_WIDTH or (head_dim or 0) > MAX_WIDTH:
        return f"D={head_dim}, E={v.shape[-1]}, and it takes heads up to {MAX_WIDTH} wide"
    if projection is not None and projection.requires_grad and torch.is_grad_enabled():
        return "projection requires a gradient, and it treats it as fixed"
    if not v.is_cuda and not (v.device.type == "cpu" and _is_interpreted()):
        return f"the tensors are on {v.device.type} (set TRITON_INTERPRET=1 to test on the CPU)"
    return None


def _is_interpreted() -> bool:
    from saccade.ops.linear.triton import INTERPRETED

    return INTERPRETED
