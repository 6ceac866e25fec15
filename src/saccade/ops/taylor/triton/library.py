"""What the kernels of both algorithms share: rows, the unit sphere, products, scores, features.

A row x of queries or keys enters as alpha x, alpha = factor or factor / |x|, so that TaylorShift's
normalization costs no pass of its own. Rows beyond the end and masked keys are zero; both drop out,
because the part b s + a s^2 of a weight vanishes at s = 0 and the constant part is a plain sum.

Scores come out of the matrix unit in float32 and go back to it as bfloat16. Rounded at once, two of
them share each instruction; that leaves errors of a few roundings instead of one, about those of
the plain formula in bfloat16. Other dtypes are computed in float32 throughout.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops._triton.library import COMPILED, materialize, nearest_tf32

__all__ = [
    "FUSED",
    "NORM_EPS",
    "PAIR",
    "TABLE_STEP",
    "add_product",
    "add_row_sums",
    "feature_of_row",
    "kept_rows",
    "load_columns",
    "load_key_fraction",
    "load_moments",
    "load_rows",
    "load_state",
    "load_table",
    "multiples",
    "multiply",
    "outer_features",
    "output_factor",
    "pack_bf16x2",
    "product",
    "pull_back",
    "pull_back_weighted",
    "rounded",
    "rounded_sum",
    "row_factors",
    "rows_times",
    "scale_add",
    "store_coefficients",
    "store_rows",
    "swizzled_outer",
    "table_offset",
    "table_place",
    "tile_pair",
]

NORM_EPS = tl.constexpr(1e-12)
TABLE_STEP = tl.constexpr(128)  # the largest block that goes by


@triton.jit
def pack_bf16x2(x):
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
def multiples(numbers, ALIGNMENT: tl.constexpr):
    """The same numbers; tells the compiler that they are multiples of ALIGNMENT.

    Triton tells it so of 16. Eight columns that exist or not together are loaded at once.
    """
    if ALIGNMENT == 1:
        return numbers
    told = ()
    for i in tl.static_range(len(numbers)):
        told += (numbers[i] // ALIGNMENT * ALIGNMENT,)  # type: ignore[assignment]
    return told


@triton.jit
def kept_rows(first, limit, p_mask, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Which of the rows from `first` on exist and are attended to."""
    rows = first + tl.arange(0, BLOCK)
    if MASKED:
        return tl.load(p_mask + rows, mask=rows < limit, other=0) != 0
    return rows < limit


@triton.jit
def load_rows(base, m_rows, o_d, width, stride_n, stride_d, EVEN: tl.constexpr):
    """(rows, cols) from `base` on; zero where a row is not kept or a column does not exist.

    Where EVEN, every row and column exists and nothing is compared.
    """
    rows = tl.arange(0, m_rows.shape[0])
    pointers = base + rows[:, None] * stride_n + o_d[None, :] * stride_d
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=m_rows[:, None] & (o_d < width)[None, :], other=0.0)


@triton.jit
def table_offset(i_bh, rows):
    """Offset of one head in a table of one number for each row, `TABLE_STEP` rows after another."""
    return i_bh.to(tl.int64) * (tl.cdiv(rows, TABLE_STEP) * TABLE_STEP)


@triton.jit
def table_place(row):
    """Where in its head's part of a table the number of a row is.

    A product leaves a thread with columns 2 t, 2 t + 1 of every eight. Of each 32 rows, those that
    one thread wants lie side by side, so that it loads eight numbers at once.
    """
    return (row & -32) | ((row & 6) << 2) | ((row & 24) >> 2) | (row & 1)


@triton.jit
def load_table(p_head, start, BLOCK: tl.constexpr):
    """The numbers of a block of rows out of a head's table, rows that do not exist included."""
    if BLOCK % 32 == 0:
        x = tl.load(p_head + start + tl.arange(0, BLOCK))
        x = tl.reshape(tl.permute(tl.reshape(x, (BLOCK // 32, 4, 4, 2)), (0, 2, 1, 3)), (BLOCK,))
    else:
        x = tl.load(p_head + table_place(start + tl.arange(0, BLOCK)))
    return x if COMPILED else x.to(tl.float32)  # the interpreter cannot multiply bfloat16


@triton.jit
def store_coefficients(p_rows_a, p_rows_b, place, alpha, a, b):
    """Write the coefficients of w' = row_b s + row_a s^2 for normalized keys; alpha is 1 / |k|."""
    dtype = p_rows_a.dtype.element_ty
    tl.store(p_rows_a + place, (a * alpha * alpha).to(dtype))
    tl.store(p_rows_b + place, (b * alpha).to(dtype))


@triton.jit
def store_rows(base, m_rows, o_d, width, stride_n, value):
    """Write (rows, cols) from `base` on."""
    rows = tl.arange(0, m_rows.shape[0])
    pointers = base + rows[:, None] * stride_n + o_d[None, :]
    tl.store(
        pointers, value.to(base.dtype.element_ty), mask=m_rows[:, None] & (o_d < width)[None, :]
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
    x,
    base,
    m_rows,
    factors,
    width,
    stride_n,
    stride_d,
    matrix,
    row_stride,
    column_stride,
    acc,
    CHUNK: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """acc + x M, x (rows, W) being the rows from `base` on, times their factors where given.

    M (W, columns of acc) is float32 in memory, and would fill registers and shared memory where
    both are wide: CHUNK of its rows are taken at a time.
    """
    WIDTH: tl.constexpr = x.shape[1]
    STEP: tl.constexpr = CHUNK if CHUNK < WIDTH else WIDTH
    columns, inner = tl.arange(0, acc.shape[1]), tl.arange(0, STEP)
    matrix = matrix + inner[:, None] * row_stride + columns[None, :] * column_stride
    if STEP == WIDTH:
        acc = product(x, tl.load(matrix).to(x.dtype), acc, PRECISION)
    else:
        for first in range(0, WIDTH, STEP):
            part = load_rows(base, m_rows, first + inner, width, stride_n, stride_d, EVEN)
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
def load_key_fraction(p_key_fraction, sample, MASKED: tl.constexpr):
    """The fraction of the keys that a sample attends to."""
    if MASKED:
        return tl.load(p_key_fraction + sample)
    return 1.0


@triton.jit
def output_factor(key_fraction, output_scale, SCALE_OUTPUT: tl.constexpr):
    """sqrt(keys attended to / D) if outputs are normalized; `output_scale` is that of all keys."""
    if SCALE_OUTPUT:
        return output_scale * tl.sqrt(key_fraction * 1.0 + tl.zeros([], tl.float32))
    return 1.0


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
def multiply(x, y):
    """x y, y rounded to the dtype of x."""
    if COMPILED and x.dtype == tl.bfloat16:
        x = tl.inline_asm_elementwise(
            _TIMES, "=r,r,r", [x, tl.cast(y, tl.bfloat16)], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        x *= y
    return x


@triton.jit
def scale_add(x, a, b):
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
                x = scale_add(x, 1.0, y)
        sums += x.to(tl.float32)
    else:
        sums += tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), axis=1)
    return sums


@triton.jit
def tile_pair(t, TILES: tl.constexpr):
    """The t-th pair (m, n), m <= n, counted row by row."""
    m = 0
    for r in tl.static_range(1, TILES):
        m += tl.where(t >= r * TILES - r * (r - 1) // 2, 1, 0)
    return m, m + t - (m * TILES - m * (m - 1) // 2)


@triton.jit
def outer_features(x, y):
    """(rows, W), (rows, 16) -> (rows, 16 W)."""
    return tl.reshape(x[:, :, None] * y[:, None, :], (x.shape[0], 16 * x.shape[1]))


@triton.jit
def swizzled_outer(x, y, weights):
    """(rows, 16), (rows, 16) -> (256, rows): the features as rows, times weights where given.

    Feature (i, j) is in the row (i % 4, i // 4, j % 2, j // 2). In that order the numbers that a
    thread needs of x, and of y, are neighbors, and both come from shared memory as they lie there.
    """
    rows: tl.constexpr = x.shape[0]
    x = pack_bf16x2(tl.permute(tl.reshape(x, (rows, 4, 4)), (2, 1, 0)))
    y = pack_bf16x2(tl.permute(tl.reshape(y, (rows, 8, 2)), (2, 1, 0)))
    if weights is not None:
        y = multiply(y, weights[None, None, :])
    return tl.reshape(x[:, :, None, None, :] * y[None, None, :, :, :], (256, rows))


@triton.jit
def feature_of_row():
    """Which feature 16 i + j each row of `swizzled_outer` is."""
    row = tl.arange(0, 256)
    return (row // 16 % 4 * 4 + row // 64) * 16 + row % 8 * 2 + row // 8 % 2


@triton.jit
def load_columns(
    base,
    m_rows,
    first,
    width,
    stride_n,
    stride_d,
    COUNT: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """COUNT columns of some rows."""
    columns = first + tl.arange(0, COUNT)
    return load_rows(base, m_rows, columns, width, stride_n, stride_d, EVEN).to(DTYPE)


@triton.jit
def load_state(
    p_state,
    first,
    width,
    COUNT: tl.constexpr,
    WP: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """COUNT features of the state: (COUNT, width)."""
    columns, features = tl.arange(0, WP), first + tl.arange(0, COUNT)
    place = p_state + features[:, None] * width + columns[None, :]
    if EVEN:
        return tl.load(place).to(DTYPE)
    return tl.load(place, mask=(columns < width)[None, :], other=0.0).to(DTYPE)


@triton.jit
def load_moments(place, DP: tl.constexpr, EP: tl.constexpr, DTYPE: tl.constexpr):
    """L (D, E) and G (D, D)."""
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    mixed = tl.load(place + o_d[:, None] * EP + o_e[None, :]).to(DTYPE)
    gram = tl.load(place + DP * EP + o_d[:, None] * DP + o_d[None, :]).to(DTYPE)
    return mixed, gram
