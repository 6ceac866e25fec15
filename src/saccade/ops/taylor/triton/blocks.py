"""What both fused algorithms share: loading rows, the unit sphere, products, sums of parts.

A row x of queries or keys enters as alpha x, alpha = factor or factor / |x|, so that TaylorShift's
normalization costs no pass of its own. Rows beyond the end and masked keys are zero; both drop out,
because the part b s + a s^2 of a weight vanishes at s = 0 and the constant part is a plain sum.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import COMPILED, materialize, nearest_tf32

__all__ = [
    "NORM_EPS",
    "TABLE_STEP",
    "add_parts",
    "add_product",
    "head_offset",
    "kept_rows",
    "load_rows",
    "load_share",
    "load_table",
    "multiples",
    "output_factor",
    "packed",
    "product",
    "pull_back",
    "pull_back_weighted",
    "row_factors",
    "rows_times",
    "store_coefficients",
    "store_rows",
    "table_offset",
    "table_place",
]

NORM_EPS = tl.constexpr(1e-12)
TABLE_STEP = tl.constexpr(128)  # the largest block that goes by


@triton.jit
def packed(x):
    """The same numbers, neighbors of a thread two to a register where they are bfloat16.

    Used several times, two numbers that do not come out of memory together are else put together
    again for each use.
    """
    if COMPILED and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return x


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b in float32, or a b where acc is None.

    The matrix unit cuts float32 operands to TF32; they are rounded to it first, so that errors do
    not all point the same way.
    """
    if PRECISION == "tf32" and a.dtype == tl.float32:
        a, b = nearest_tf32(a), nearest_tf32(b)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def add_product(acc, a, b, PRECISION: tl.constexpr):
    """acc + a b.

    An exact float32 product adds its terms to acc one after the other. In a loop over the state
    all steps would form one chain of D^2 / 2 roundings, so each step is summed from zero and then
    added.
    """
    if PRECISION == "ieee" and a.dtype == tl.float32:
        return acc + materialize(product(a, b, None, PRECISION))
    return product(a, b, acc, PRECISION)


@triton.jit
def multiples(numbers, GRAIN: tl.constexpr):
    """The same numbers, which are multiples of GRAIN: now the compiler knows.

    Triton tells it so of 16. Eight columns that exist or not together are loaded at once.
    """
    if GRAIN == 1:
        return numbers
    told = ()
    for i in tl.static_range(len(numbers)):
        told += (numbers[i] // GRAIN * GRAIN,)  # type: ignore[assignment]
    return told


@triton.jit
def head_offset(bh, heads, stride_b, stride_h):
    """Offset of one head of one sample, in 64 bits."""
    return (bh // heads).to(tl.int64) * stride_b + (bh % heads).to(tl.int64) * stride_h


@triton.jit
def kept_rows(first, limit, mask_ptr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Which of the rows from `first` on exist and are attended to."""
    rows = first + tl.arange(0, BLOCK)
    if MASKED:
        return tl.load(mask_ptr + rows, mask=rows < limit, other=0) != 0
    return rows < limit


@triton.jit
def load_rows(base, keep, cols, width, stride_n, stride_d, EVEN: tl.constexpr):
    """(rows, cols) from `base` on; zero where a row is not kept or a column does not exist.

    Where EVEN, every row and column exists and nothing is compared.
    """
    rows = tl.arange(0, keep.shape[0])
    pointers = base + rows[:, None] * stride_n + cols[None, :] * stride_d
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=keep[:, None] & (cols < width)[None, :], other=0.0)


@triton.jit
def table_offset(bh, rows):
    """Offset of one head in a table of one number for each row, `TABLE_STEP` rows after another."""
    return bh.to(tl.int64) * (tl.cdiv(rows, TABLE_STEP) * TABLE_STEP)


@triton.jit
def table_place(row):
    """Where in its head's part of a table the number of a row is.

    A product leaves a thread with columns 2 t, 2 t + 1 of every eight. Of each 32 rows, those that
    one thread wants lie side by side, so that it loads eight numbers at once.
    """
    return (row & -32) | ((row & 6) << 2) | ((row & 24) >> 2) | (row & 1)


@triton.jit
def load_table(head_ptr, start, BLOCK: tl.constexpr):
    """The numbers of a block of rows out of a head's table, rows that do not exist included."""
    if BLOCK % 32 == 0:
        x = tl.load(head_ptr + start + tl.arange(0, BLOCK))
        x = tl.reshape(tl.permute(tl.reshape(x, (BLOCK // 32, 4, 4, 2)), (0, 2, 1, 3)), (BLOCK,))
    else:
        x = tl.load(head_ptr + table_place(start + tl.arange(0, BLOCK)))
    return x if COMPILED else x.to(tl.float32)  # the interpreter cannot multiply bfloat16


@triton.jit
def store_coefficients(curves_ptr, slopes_ptr, place, alpha, a, b):
    """Write, alpha being 1 / |k|, what w' = slope s + curve s^2 takes of normalized keys."""
    dtype = curves_ptr.dtype.element_ty
    tl.store(curves_ptr + place, (a * alpha * alpha).to(dtype))
    tl.store(slopes_ptr + place, (b * alpha).to(dtype))


@triton.jit
def store_rows(base, keep, cols, width, stride_n, value):
    """Write (rows, cols) from `base` on."""
    rows = tl.arange(0, keep.shape[0])
    pointers = base + rows[:, None] * stride_n + cols[None, :]
    tl.store(
        pointers, value.to(base.dtype.element_ty), mask=keep[:, None] & (cols < width)[None, :]
    )


@triton.jit
def row_factors(x, factor, NORMALIZE: tl.constexpr):
    """alpha of every row: factor, over the row's length where rows are normalized."""
    if NORMALIZE:
        x = x.to(tl.float32)
        return factor / tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), NORM_EPS)
    return tl.zeros([x.shape[0]], tl.float32) + factor


@triton.jit
def rows_times(
    x, base, keep, factors, width, stride_n, stride_d, matrix, row_stride, column_stride, acc,
    PIECE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + x M, x (rows, W) being the rows from `base` on, times their factors where given.

    M (W, columns of acc) is float32 in memory, and would fill registers and shared memory where
    both are wide: PIECE of its rows are taken at a time.
    """
    WIDTH: tl.constexpr = x.shape[1]
    STEP: tl.constexpr = PIECE if PIECE < WIDTH else WIDTH
    columns, inner = tl.arange(0, acc.shape[1]), tl.arange(0, STEP)
    matrix = matrix + inner[:, None] * row_stride + columns[None, :] * column_stride
    if STEP == WIDTH:
        acc = product(x, tl.load(matrix).to(x.dtype), acc, PRECISION)
    else:
        for first in range(0, WIDTH, STEP):
            part = load_rows(base, keep, first + inner, width, stride_n, stride_d, EVEN)
            if factors is not None:
                part = part.to(tl.float32) * factors[:, None]
            m = tl.load(matrix + first * row_stride).to(x.dtype)
            acc = product(part.to(x.dtype), m, acc, PRECISION)
    return acc


@triton.jit
def pull_back(grad, raw, factor, NORMALIZE: tl.constexpr):
    """Gradient of x from that of alpha x, and each row's contribution to that of the factor."""
    raw = raw.to(tl.float32)
    if NORMALIZE:
        inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(raw * raw, axis=1)), NORM_EPS)
        unit = raw * inverse[:, None]
        along = tl.sum(grad * unit, axis=1)
        return (grad - along[:, None] * unit) * (factor * inverse)[:, None], along
    return grad * factor, tl.sum(grad * raw, axis=1)


@triton.jit
def pull_back_weighted(grad, raw, factor, NORMALIZE: tl.constexpr):
    """As `pull_back`, from a gradient that is divided by the length of its row already."""
    raw = raw.to(tl.float32)
    if NORMALIZE:
        unit = raw / tl.maximum(tl.sqrt(tl.sum(raw * raw, axis=1)), NORM_EPS)[:, None]
        dx = (grad - tl.sum(grad * unit, axis=1)[:, None] * unit) * factor
    else:
        dx = grad * factor
    return dx, tl.sum(grad * raw, axis=1)


@triton.jit
def load_share(share_ptr, sample, MASKED: tl.constexpr):
    """The share of the keys that a sample attends to."""
    if MASKED:
        return tl.load(share_ptr + sample)
    return 1.0


@triton.jit
def output_factor(share, lift, LIFT: tl.constexpr):
    """f = sqrt(keys attended to / D) where outputs are normalized, lift being that of all keys."""
    if LIFT:
        return lift * tl.sqrt(share * 1.0 + tl.zeros([], tl.float32))
    return 1.0


@triton.jit
def add_parts(parts_ptr, head_ptr, tail_ptr, parts, head, size, BLOCK: tl.constexpr):
    """Partial sums (parts, size) added up in order: the first `head` of them, and the others."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(parts):
        total += tl.load(parts_ptr + places, mask=places < size, other=0.0)
        parts_ptr += size
    in_head = places < head
    tl.store(head_ptr + places, total.to(head_ptr.dtype.element_ty), mask=in_head)
    in_tail = (places >= head) & (places < size)
    tl.store(tail_ptr + places - head, total.to(tail_ptr.dtype.element_ty), mask=in_tail)
