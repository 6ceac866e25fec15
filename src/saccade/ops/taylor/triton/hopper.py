"""What both passes have on Hopper: which heads its own kernels take, and how they are tried."""

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import torch

from saccade.ops.taylor.triton.problem import Form, Problem, Strides

__all__ = ["attempted", "described", "has_kernels", "is_aligned"]

T = TypeVar("T")

DIMS = (64, 128)
MAX_ROWS = 1 << 31
"""Rows of all heads together: offsets in tables have 32 bits."""
MAX_STRIDE = 1 << 39
"""In numbers of two bytes; what a descriptor holds."""
MAX_ROW_STRIDE = 1 << 23
"""Offsets within a tile have 32 bits."""


def _can_be_described(strides: Strides) -> bool:
    """Whether rows are whole and lie 16 bytes, or a multiple of them, apart."""
    *steps, column = strides
    apart = all(step % 8 == 0 and 0 < step < MAX_STRIDE for step in steps)
    return column == 1 and apart and steps[-1] < MAX_ROW_STRIDE


def has_kernels(f: Form) -> bool:
    """Whether the device is a Hopper, and heads are as all of its own kernels want them."""
    if f.capability != (9, 0) or f.dtype != torch.bfloat16 or f.masked:
        return False
    return (
        f.dim in DIMS
        and f.width == f.dim
        and f.batch_heads * max(f.queries, f.keys) < MAX_ROWS
        and all(map(_can_be_described, (f.q_stride, f.k_stride, f.v_stride)))
    )


def is_aligned(p: Problem) -> bool:
    """Whether q, k and v begin at multiples of 16 bytes."""
    return not (p.q.data_ptr() | p.k.data_ptr() | p.v.data_ptr()) & 15


_failed: set[Any] = set()
"""Modules of kernels and the kinds of calls that they did not compile for."""


def attempted(f: Form, module: str, make: Callable[[ModuleType], T]) -> T | None:
    """What is made of a module's kernels for a form, or None where that failed.

    Gluon is experimental, and has other names in other releases of Triton: what cannot be imported
    or compiled is left to the other kernels, with a warning.
    """
    if (module, f.kind) in _failed:
        return None
    try:
        return make(importlib.import_module(f"saccade.ops.taylor.triton.{module}"))
    except Exception as error:
        _failed.add((module, f.kind))
        told = f"{type(error).__name__}: {error}"
        warnings.warn(f"a slower kernel takes the place of Hopper's own ({told})", stacklevel=3)
        return None


def described(descriptor: Any) -> Callable[[Any], Any]:
    """What makes copies of a descriptor with a tensor put in.

    Made anew, each would be checked again, for longer than all else that a launch takes.
    """
    kind, parts = type(descriptor), vars(descriptor)

    def of(x: Any) -> Any:
        copy = object.__new__(kind)
        vars(copy).update(parts, base=x)
        return copy

    return of
