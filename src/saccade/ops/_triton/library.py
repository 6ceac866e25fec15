"""Device functions that all families share: whole products, rounded operands, offsets of heads."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops._triton.launch import INTERPRETED

__all__ = ["COMPILED", "head_offset", "materialize", "nearest_tf32"]

COMPILED = tl.constexpr(not INTERPRETED)


@triton.jit
def materialize(product):
    """The product, finished here.

    A product whose only reader is the next step of a loop is left in flight over the loop's edge.
    With an operand in registers the assembler then takes it piece by piece, each piece waited for
    (ptxas C7515); a move that it removes keeps it whole.
    """
    if COMPILED:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [product], dtype=tl.float32, is_pure=True, pack=1
        )
    return product


@triton.jit
def nearest_tf32(x):
    """Round to the ten bits behind the point that TF32 keeps; the matrix unit would cut."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def head_offset(i_bh, heads, stride_b, stride_h):
    """Offset of one head of one sample, in 64 bits."""
    return (i_bh // heads).to(tl.int64) * stride_b + (i_bh % heads).to(tl.int64) * stride_h
