"""The choice between fused kernels (Triton) and torch, for all families of ops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import get_args

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops.arguments import Backend
from saccade.ops.compilation import constant_when_compiled

__all__ = [
    "MAX_WIDTH",
    "TRITON_INSTALLED",
    "fused_obstacle",
    "has_bfloat16",
    "is_compiled_for_gpu",
    "is_differentiated_forward",
    "is_plain",
    "is_transformed",
    "plain_operators",
    "takes_fused",
]

MAX_WIDTH = 128

TRITON_INSTALLED = find_spec("triton") is not None

_plain = 0
"""How many `plain_operators` contexts are open in this process."""


@contextmanager
def plain_operators() -> Iterator[None]:
    """Compute every attention with torch's own operators, so that its graph can be exported.

    No kernel or operator of this library is called. Results equal those of the other paths up to
    rounding; memory is quadratic for quadratic algorithms. The setting holds for the whole process,
    including other threads.
    """
    global _plain
    _plain += 1
    try:
        yield
    finally:
        _plain -= 1


def is_plain() -> bool:
    """True if `plain_operators` is active."""
    return _plain > 0


def takes_fused(backend: Backend, obstacle: str | None, *, preferred: bool) -> bool:
    """Decide between the fused kernels and torch.

    Args:
        backend: Requested backend; `triton` raises with the reason if it cannot run.
        obstacle: Why the kernels cannot run, if they cannot.
        preferred: True if `auto` uses the kernels when they can run.
    """
    if backend not in get_args(Backend):
        raise UnknownNameError("backend", str(backend), get_args(Backend))
    if backend == "triton" and obstacle is not None:
        raise ConfigError(f"backend='triton' cannot run here: {obstacle}; use 'auto' or 'torch'")
    return backend == "triton" or (backend == "auto" and preferred and obstacle is None)


def fused_obstacle(v: Tensor, head_dim: int | None = None) -> str | None:
    """Why no kernel supports these tensors, if none does."""
    if is_plain():
        return "plain_operators() requires torch's own operators"
    if is_transformed():
        return "torch.func and forward-mode differentiation need torch's own operators"
    if not TRITON_INSTALLED:
        return "triton is not installed (pip install 'saccade[triton]')"
    if v.dtype == torch.float64:
        return "it has no float64"
    if v.shape[-1] > MAX_WIDTH or (head_dim or 0) > MAX_WIDTH:
        return f"D={head_dim}, E={v.shape[-1]}, and it takes heads up to {MAX_WIDTH} wide"
    if not v.is_cuda and not (v.device.type == "cpu" and _is_interpreted()):
        return f"the tensors are on {v.device.type} (set TRITON_INTERPRET=1 to test on the CPU)"
    if v.is_cuda and v.dtype == torch.bfloat16 and not has_bfloat16(v.get_device()):
        return "bfloat16 needs compute capability 8.0 or more"
    return None


def is_transformed() -> bool:
    """True within a transform of `torch.func` or forward-mode differentiation.

    Both need functions made of torch's own operators. `vmap` alone does not: it calls other
    operators sample by sample.
    """
    if is_differentiated_forward():
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    derivatives = (TransformType.Grad, TransformType.Jvp)
    return any(level.key() in derivatives for level in get_interpreter_stack() or ())


def is_differentiated_forward() -> bool:
    """True if forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


@constant_when_compiled
def has_bfloat16(index: int) -> bool:
    """True if the GPU supports bfloat16."""
    return torch.cuda.get_device_capability(index) >= (8, 0)


def is_compiled_for_gpu(x: Tensor) -> bool:
    """True while torch.compile compiles for a GPU; False while a graph is exported.

    Reads a flag of torch, because `is_exporting()` is true in all compiled code in many versions of
    torch, such as 2.11.
    """
    exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    return x.is_cuda and torch.compiler.is_compiling() and not exporting


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") not in ("0", "")
