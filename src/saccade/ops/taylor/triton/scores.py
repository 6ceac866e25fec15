"""Arithmetic of scores in bfloat16, two numbers at a time.

Scores come out of the matrix unit in float32 and go back to it as bfloat16. Rounded at once, two of
them share each instruction; that leaves errors of a few roundings instead of one, about those of
the plain formula in bfloat16. Other dtypes are computed in float32 throughout.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import COMPILED

__all__ = ["FUSED", "PAIR", "add_row_sums", "line", "rounded", "rounded_sum", "times"]

_MAX_HALVINGS = tl.constexpr(5)  # of 256 columns to 8

# A product is a fused multiply-add with -0, which Ampere has as well.
PAIR = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
_SUM_PAIR = tl.constexpr(
    "{ .reg .f32 x, y; add.f32 x, $1, $3; add.f32 y, $2, $4; cvt.rn.bf16x2.f32 $0, y, x; }"
)
_TIMES = tl.constexpr("{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z; }")
FUSED = tl.constexpr("fma.rn.bf16x2 $0, $1, $2, $3;")


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Numbers out of the matrix unit as the functions below take them."""
    if COMPILED and tl.bfloat16 == DTYPE:
        x = tl.inline_asm_elementwise(PAIR, "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2)
    return x


@triton.jit
def rounded_sum(x, y, DTYPE: tl.constexpr):
    """x + y, added in float32."""
    if COMPILED and tl.bfloat16 == DTYPE:
        x = tl.inline_asm_elementwise(
            _SUM_PAIR, "=r,r,r,r,r", [x, y], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        x += y
    return x


@triton.jit
def times(x, y):
    """x y, y rounded to the dtype of x."""
    if COMPILED and x.dtype == tl.bfloat16:
        x = tl.inline_asm_elementwise(
            _TIMES, "=r,r,r", [x, tl.cast(y, tl.bfloat16)], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        x *= y
    return x


@triton.jit
def line(x, a, b):
    """a x + b, a and b rounded to the dtype of x."""
    if COMPILED and x.dtype == tl.bfloat16:
        x = tl.inline_asm_elementwise(
            FUSED,
            "=r,r,r,r",
            [x, tl.cast(a, tl.bfloat16), tl.cast(b, tl.bfloat16)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        x = a * x + b
    return x


@triton.jit
def add_row_sums(sums, x):
    """Eight sums for each row plus those of x: of every eighth of its columns."""
    if COMPILED and x.dtype == tl.bfloat16:
        for _ in tl.static_range(_MAX_HALVINGS):
            if x.shape[1] > 8:
                halves = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
                x, y = tl.split(tl.permute(halves, (0, 2, 1)))
                x = line(x, 1.0, y)
        sums += x.to(tl.float32)
    else:
        sums += tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), axis=1)
    return sums
