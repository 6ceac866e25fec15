"""Rows of q, k and v where one product left them, (B, N, 3, H, D), for kernels of one head each.

The output, (B, N, H, D), is the same with one part instead of three.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops._triton.launch import INTERPRETED, Launch

__all__ = [
    "exist",
    "load",
    "load_heads",
    "output_shape",
    "packed_launch",
    "places",
    "register_packed_flops",
    "store",
]

# The interpreter, which runs the kernels on a CPU for tests, has no products of bfloat16.
_DTYPE = {torch.bfloat16: tl.float32 if INTERPRETED else tl.bfloat16}


def packed_launch(
    kernel: object, shape: tuple[int, ...], dtype: torch.dtype, *numbers: float, **constants: Any
) -> Launch:
    """A program for each head of (B, N, 3, H, D), of at most 128 tokens; numbers follow the D."""
    batch, tokens, _, heads, dim = shape
    rows, columns = (max(16, 1 << (n - 1).bit_length()) for n in (tokens, dim))
    constants |= {
        "ROWS": rows,
        "DP": columns,
        "EVEN": (rows, columns) == (tokens, dim),
        "DTYPE": _DTYPE.get(dtype, tl.float32),
        "PRECISION": "ieee",
        "num_warps": 8 if rows > 64 else 4,
    }
    return Launch(kernel, (batch * heads,), (heads, tokens, dim, *numbers), constants)


def output_shape(qkv: Tensor) -> tuple[int, ...]:
    """(B, N, H, D)."""
    return (*qkv.shape[:2], *qkv.shape[3:])


def register_packed_flops(forward: Any, backward: Any) -> None:
    """Have torch count the operations of two operators: two products of N x N, and five."""

    def count(shape: Sequence[int], products: int) -> int:
        batch, tokens, _, heads, dim = shape
        return 2 * products * batch * heads * tokens**2 * dim

    register_flop_formula(forward)(lambda qkv, *_args, **_kwargs: count(qkv, 2))
    register_flop_formula(backward)(lambda _grad, qkv, *_args, **_kwargs: count(qkv, 5))


@triton.jit
def places(heads, tokens, D, PARTS: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):
    """Where the rows of this program's head are in (B, N, PARTS, H, D), in its first part."""
    i_bh, rows, cols = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, DP)
    pitch = PARTS * heads * D
    first = (i_bh // heads).to(tl.int64) * tokens * pitch + (i_bh % heads) * D
    return first + (rows[:, None] * pitch + cols[None, :])


@triton.jit
def exist(tokens, D, ROWS: tl.constexpr, DP: tl.constexpr):
    """Which numbers of a head there are."""
    return (tl.arange(0, ROWS) < tokens)[:, None] & (tl.arange(0, DP) < D)[None, :]


@triton.jit
def load(pointers, m_there, EVEN: tl.constexpr, DTYPE: tl.constexpr):
    """Numbers of a head, zero where there are none; EVEN where there are all."""
    if EVEN:
        return tl.load(pointers).to(DTYPE)
    return tl.load(pointers, mask=m_there, other=0.0).to(DTYPE)


@triton.jit
def load_heads(
    p_qkv,
    heads,
    tokens,
    D,
    ROWS: tl.constexpr,
    DP: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """q, k and v of this program's head."""
    m_there, part = exist(tokens, D, ROWS, DP), heads * D
    at = p_qkv + places(heads, tokens, D, 3, ROWS, DP)
    q, k = load(at, m_there, EVEN, DTYPE), load(at + part, m_there, EVEN, DTYPE)
    return q, k, load(at + 2 * part, m_there, EVEN, DTYPE)


@triton.jit
def store(pointers, value, m_there, EVEN: tl.constexpr):
    """Write the numbers of a head that there are."""
    value = value.to(pointers.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=m_there)
