"""What the kernels share: tiles of a head, rounded operands, the maps g and their derivatives.

A feature is g + c with a constant c; the kernels see g alone (see the README of this folder's
parent). Exponents of FAVOR+ are kept in base 2: y = factor W x - |x|^2 norm, g = 2^(y - top).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops._triton.library import nearest_tf32

__all__ = [
    "RUNTIME_SIZES",
    "add_columns",
    "add_outer",
    "add_rows",
    "derivative",
    "exact",
    "feature",
    "half_norm",
    "halves",
    "load_projection",
    "load_rows",
    "load_state",
    "operand",
    "product",
    "project",
    "rounded",
    "store_rows",
    "store_state",
]

# One compiled variant serves every number of tokens, heads and chunks.
RUNTIME_SIZES = ["heads", "tokens", "splits", "chunk", "queries", "keys"]

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
CLAMP = tl.constexpr(10.0)
ROOT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # of the normal distribution at 0
HALF_LOG2_E = tl.constexpr(0.7213475204444817)


@triton.jit
def load_rows(
    base, rows, m_rows, stride_row, first, WIDTH: tl.constexpr, PADDED: tl.constexpr, stride_col
):
    """(rows, PADDED) from column `first` on, in the tensor's dtype, zero outside."""
    cols = first + tl.arange(0, PADDED)
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + cols[None, :] * stride_col
    mask = m_rows[:, None]
    if WIDTH % PADDED != 0:
        mask = mask & (cols < WIDTH)[None, :]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_rows(
    base, rows, m_rows, stride_row, first, WIDTH: tl.constexpr, PADDED: tl.constexpr, stride_col, x
):
    """Write (rows, PADDED) from column `first` on."""
    cols = first + tl.arange(0, PADDED)
    pointers = base + rows.to(tl.int64)[:, None] * stride_row + cols[None, :] * stride_col
    mask = m_rows[:, None] & (cols < WIDTH)[None, :]
    if base.dtype.element_ty == tl.bfloat16:
        x = bfloat(x)
    tl.store(pointers, x.to(base.dtype.element_ty), mask=mask)


@triton.jit
def load_state(p_state, slot, features, m_features, CALL: tl.constexpr):
    """Some features of a state (M, E): (features, EP)."""
    base = p_state + slot * CALL.M * CALL.E
    return load_rows(base, features, m_features, CALL.E, 0, CALL.E, CALL.EP, 1)


@triton.jit
def store_state(p_state, slot, features, m_features, state, CALL: tl.constexpr):
    """Write some features of a state (M, E)."""
    base = p_state + slot * CALL.M * CALL.E
    store_rows(base, features, m_features, CALL.E, 0, CALL.E, CALL.EP, 1, state)


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
        x = nearest_tf32(x)
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
def halves(x):
    """x in float32 as a sum of two bfloat16 numbers."""
    leading = bfloat(x)
    return leading, bfloat(x - leading.to(tl.float32))


@triton.jit
def add_rows(sums, g, weight):
    """Add g weight to sums, of features that are not rounded yet: that costs no conversion.

    Not as a product on the matrix units: beside another one that takes the same g from registers,
    what ptxas made of it was wrong on Hopper (docs/log.md).
    """
    return sums + tl.sum(g * weight[None, :], axis=1)


@triton.jit
def add_outer(acc, a, b, OPERAND: tl.constexpr):
    """acc + a b^T; in bfloat16 by a product of their halves, which holds no b for every column.

    That pays from 64 columns on.
    """
    if OPERAND == "bf16" and acc.shape[1] >= 64:
        a_leading, a_rest = halves(a)
        b_leading, b_rest = halves(b)
        cols, rows = tl.arange(0, 16)[None, :], tl.arange(0, 16)[:, None]
        left = tl.where(cols < 2, a_leading[:, None], tl.where(cols == 2, a_rest[:, None], 0.0))
        right = tl.where(rows == 1, b_rest[None, :], tl.where(rows < 3, b_leading[None, :], 0.0))
        return product(operand(left), operand(right), acc, OPERAND)
    return acc + a[:, None] * b[None, :]


@triton.jit
def operand(x):
    """Numbers that are bfloat16 already, as bfloat16."""
    if INTERPRETED:
        return x.to(tl.float32)
    return x.to(tl.bfloat16)


@triton.jit
def add_columns(sums, u, OPERAND: tl.constexpr):
    """Add the rows of u to sums, whose rows are all alike: 16 in bfloat16, 1 otherwise."""
    if OPERAND == "bf16":
        ones = operand(tl.full([16, u.shape[0]], 1.0, tl.float32))
        return product(ones, u, sums, OPERAND)
    return sums + tl.sum(u.to(tl.float32), axis=0)[None, :]


@triton.jit
def load_projection(
    p_w,
    first,
    M: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    DP: tl.constexpr,
    PARTS: tl.constexpr,
):
    """W (BM, DP) from feature `first` on: a matrix, or two in half precision whose sum it is.

    With two, products with W lose nothing that float32 would keep.
    """
    features = first + tl.arange(0, BM)
    w = load_rows(p_w, features, features < M, D, 0, D, DP, 1)  # (BM, DP)
    rest = w
    if PARTS == 2:
        rest = load_rows(p_w + M * D, features, features < M, D, 0, D, DP, 1)  # (BM, DP)
    return w, rest


@triton.jit
def project(x, w, rest, PARTS: tl.constexpr, OPERAND: tl.constexpr):
    """x W^T in float32; with x and W exchanged, its transpose."""
    z = tl.zeros([x.shape[0], w.shape[0]], tl.float32)
    z = product(x, tl.trans(w), z, OPERAND)
    if PARTS == 2:
        z = product(x, tl.trans(rest), z, OPERAND)
    return z


@triton.jit
def half_norm(x, norm):
    """norm |x|^2 of every row."""
    x = x.to(tl.float32)
    return tl.sum(x * x, axis=1) * norm


@triton.jit
def normal(y, OPERAND: tl.constexpr):
    """The normal distribution function; within 5e-5 where operands have 11 bits or fewer."""
    if OPERAND == "bf16" or OPERAND == "tf32":
        t = tl.minimum(y * y, 16.81)
        p = -1.3728505e-09 * t + 1.0994508e-07
        p = p * t - 3.8364842e-06
        p = p * t + 7.7668396e-05
        p = p * t - 1.0301797e-03
        p = p * t + 9.610001e-03
        p = p * t - 0.066102967
        p = p * t + 0.39882049
        return tl.minimum(tl.maximum(p * y + 0.5, 0.0), 1.0)
    return 0.5 + 0.5 * tl.erf(y * ROOT_HALF)


@triton.jit
def feature(y, MAP: tl.constexpr, OPERAND: tl.constexpr):
    """g of the exponent or the scaled projection y."""
    if MAP == "favor_softmax":
        g = tl.exp2(y)
    elif MAP == "relu":
        g = tl.maximum(y, 0.0)
    elif MAP == "exp":
        g = tl.exp(tl.minimum(tl.maximum(y, -CLAMP), CLAMP))
    elif MAP == "gelu":
        g = y * normal(y, OPERAND)
    elif MAP == "elu":
        g = tl.where(y > 0, y + 1.0, tl.exp(tl.minimum(y, 0.0)))
    else:
        tl.static_assert(MAP == "identity", "unknown feature map")
        g = y
    return g


@triton.jit
def derivative(y, g, MAP: tl.constexpr, OPERAND: tl.constexpr):
    """dg/dz at y, where g = feature(y); for FAVOR+ with respect to the natural exponent."""
    if MAP == "favor_softmax":
        d = g
    elif MAP == "relu":
        d = tl.where(y > 0, 1.0, 0.0)
    elif MAP == "exp":
        d = tl.where(tl.abs(y) <= CLAMP, g, 0.0)
    elif MAP == "gelu":
        d = normal(y, OPERAND) + y * (DENSITY * tl.exp2(y * y * -HALF_LOG2_E))
    elif MAP == "elu":
        d = tl.where(y > 0, 1.0, g)
    else:
        d = tl.full(g.shape, 1.0, tl.float32)
    return d
