"""What the kernels share: tiles of a head, rounded operands, the maps g and their slopes.

A feature is g + c with a constant c; the kernels see g alone (see the README of this folder's
parent). Exponents of FAVOR+ are kept in base 2: y = factor W x - |x|^2 norm, g = 2^(y - top).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

__all__ = [
    "RUNTIME_SIZES",
    "exact",
    "feature",
    "half_norm",
    "head_offset",
    "load_rows",
    "product",
    "project",
    "rounded",
    "slope",
    "store_rows",
]

# One compiled variant serves every number of tokens, heads and pieces.
RUNTIME_SIZES = ["heads", "tokens", "splits", "chunk"]

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
CLAMP = tl.constexpr(10.0)
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_TWO_PI = tl.constexpr(2.5066282746310002)


@triton.jit
def head_offset(bh, heads, stride_b, stride_h):
    """Offset of one head of one sample, in 64 bits."""
    return (bh // heads).to(tl.int64) * stride_b + (bh % heads).to(tl.int64) * stride_h


@triton.jit
def load_rows(
    base, rows, keep, stride_row, first, WIDTH: tl.constexpr, PADDED: tl.constexpr, stride_col
):
    """(rows, PADDED) from column `first` on, in the tensor's dtype, zero outside."""
    cols = first + tl.arange(0, PADDED)
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + cols[None, :] * stride_col
    mask = keep[:, None]
    if WIDTH % PADDED != 0:
        mask = mask & (cols < WIDTH)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_rows(
    base, rows, keep, stride_row, first, WIDTH: tl.constexpr, PADDED: tl.constexpr, stride_col, x
):
    """Write (rows, PADDED) from column `first` on."""
    cols = first + tl.arange(0, PADDED)
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + cols[None, :] * stride_col
    mask = keep[:, None] & (cols < WIDTH)[None, :]
    if base.dtype.element_ty == tl.bfloat16:
        x = bfloat(x)
    tl.store(pointers, x.to(base.dtype.element_ty), mask=mask)


@triton.jit
def bfloat(x):
    """Round float32 to bfloat16; the interpreter would truncate, and gets rounded float32."""
    if INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    else:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def rounded(x, OPERAND: tl.constexpr):
    """A float32 operand of a product as the tensor cores take it, rounded to nearest.

    TF32 has the mantissa of float16 and the range of float32; the hardware would truncate to it.
    """
    if OPERAND == "bf16":
        x = bfloat(x)
    elif OPERAND == "tf32":
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def exact(x, OPERAND: tl.constexpr):
    """An input as an operand of a product; half-precision ones lose nothing."""
    if OPERAND == "bf16" and not INTERPRETED:
        x = x.to(tl.bfloat16)
    else:
        x = rounded(x.to(tl.float32), OPERAND)
    return x


@triton.jit
def product(a, b, acc, OPERAND: tl.constexpr):
    """acc + a b, in float32. The interpreter has no products of bfloat16."""
    if INTERPRETED:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    elif OPERAND == "bf16":
        acc = tl.dot(a, b, acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=OPERAND)
    return acc


@triton.jit
def project(
    x,
    w_ptr,
    first,
    M: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    DP: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """x W^T (rows, BM) in float32 and the leading part of W (BM, DP).

    W is one matrix, or a sum of two in half precision: then the product loses nothing that float32
    would keep.
    """
    features = first + tl.arange(0, BM)
    w = load_rows(w_ptr, features, features < M, D, 0, D, DP, 1)
    z = product(x, tl.trans(w), tl.zeros([x.shape[0], BM], tl.float32), OPERAND)
    if PARTS == 2:
        rest = load_rows(w_ptr + M * D, features, features < M, D, 0, D, DP, 1)
        z = product(x, tl.trans(rest), z, OPERAND)
    return z, w


@triton.jit
def half_norm(x, norm):
    """norm |x|^2 of every row."""
    x = x.to(tl.float32)
    return tl.sum(x * x, axis=1) * norm


@triton.jit
def feature(y, MAP: tl.constexpr):
    """g of the exponent or the scaled projection y."""
    if MAP == "favor_softmax":
        g = tl.exp2(y)
    elif MAP == "relu":
        g = tl.maximum(y, 0.0)
    elif MAP == "exp":
        g = tl.exp(tl.minimum(tl.maximum(y, -CLAMP), CLAMP))
    elif MAP == "gelu":
        g = y * (0.5 + 0.5 * tl.erf(y * ROOT_HALF))
    elif MAP == "elu":
        g = tl.where(y > 0, y + 1.0, tl.exp(tl.minimum(y, 0.0)))
    else:
        tl.static_assert(MAP == "identity", "unknown feature map")
        g = y
    return g


@triton.jit
def slope(y, g, MAP: tl.constexpr):
    """dg/dz at y, where g = feature(y); for FAVOR+ with respect to the natural exponent."""
    if MAP == "favor_softmax":
        d = g
    elif MAP == "relu":
        d = tl.where(y > 0, 1.0, 0.0)
    elif MAP == "exp":
        d = tl.where(tl.abs(y) <= CLAMP, g, 0.0)
    elif MAP == "gelu":
        d = 0.5 + 0.5 * tl.erf(y * ROOT_HALF) + y * tl.exp(-0.5 * y * y) / ROOT_TWO_PI
    elif MAP == "elu":
        d = tl.where(y > 0, 1.0, g)
    else:
        d = tl.full(g.shape, 1.0, tl.float32)
    return d
