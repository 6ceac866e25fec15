"""Passes over single rows: sums of values, coefficients of keys, gradients of quotients."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset
from saccade.ops._triton.tiles import ceil_div, multiprocessors
from saccade.ops.taylor.triton.library import (
    TABLE_STEP,
    kept_rows,
    load_key_fraction,
    load_rows,
    multiples,
    output_factor,
    row_factors,
    store_coefficients,
    store_rows,
    table_offset,
    table_place,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Problem, Strides, alignment_of

__all__ = [
    "coefficient_tables",
    "key_splits",
    "quotient",
    "quotient_gradients",
    "sum_keys",
    "temperature_gradient",
    "unit_keys",
    "weighted_gradients",
]


@triton.jit
def key_sums(
    p_k,
    p_v,
    p_mask,
    p_rows_a,
    p_rows_b,
    p_sums,
    sizes,
    k_strides,
    v_strides,
    a,
    b,
    DP: tl.constexpr,
    EP: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    MASKED: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """The sum of v over a block of keys; where these are normalized, their coefficients."""
    heads, keys, D, E = sizes
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    D, E, kb, kh, kn, vb, vh, vn = multiples((D, E, kb, kh, kn, vb, vh, vn), ALIGNMENT)
    block, i_bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    m_rows = kept_rows(first, keys, p_mask + (i_bh // heads).to(tl.int64) * keys, ROWS, MASKED)
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    p_v_rows = p_v + head_offset(i_bh, heads, vb, vh) + first.to(tl.int64) * vn
    v = load_rows(p_v_rows, m_rows, o_e, E, vn, vd, False).to(tl.float32)  # (ROWS, EP)
    slot = i_bh.to(tl.int64) * tl.num_programs(0) + block
    tl.store(p_sums + slot * E + o_e, tl.sum(v, axis=0), mask=o_e < E)
    if NORMALIZE:
        p_k_rows = p_k + head_offset(i_bh, heads, kb, kh) + first.to(tl.int64) * kn
        alpha = row_factors(load_rows(p_k_rows, m_rows, o_d, D, kn, kd, False), 1.0, True)
        place = table_offset(i_bh, keys) + table_place(first + tl.arange(0, ROWS))
        store_coefficients(p_rows_a, p_rows_b, place, tl.where(m_rows, alpha, 0.0), a, b)


@triton.jit(do_not_specialize=["heads"])
def prepare_keys(
    p_k,
    p_v,
    p_unit,
    p_sums,
    heads,
    keys,
    per_split,
    k_strides,
    v_strides,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """The sum of v over some keys of a head; k / |k| where keys are normalized.

    D = E, all columns lie side by side, strides are multiples of 8 and splits of ROWS.
    """
    kb, kh, kn = k_strides
    vb, vh, vn = v_strides
    kb, kh, kn, vb, vh, vn = multiples((kb, kh, kn, vb, vh, vn), 8)
    split, i_bh = tl.program_id(0), tl.program_id(1)
    first = (split * per_split).to(tl.int64)
    rows, o_d = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    k_at = p_k + head_offset(i_bh, heads, kb, kh) + first * kn + rows * kn + o_d
    v_at = p_v + head_offset(i_bh, heads, vb, vh) + first * vn + rows * vn + o_d
    unit_at = p_unit + (i_bh.to(tl.int64) * keys + first) * DIM + rows * DIM + o_d
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for _ in tl.range(0, per_split, ROWS, num_stages=STAGES):
        if NORMALIZE:
            k = tl.load(k_at).to(tl.float32)
            sums += tl.load(v_at)
            k *= row_factors(k, 1.0, True)[:, None]
            tl.store(unit_at, k.to(p_unit.dtype.element_ty))
        else:
            sums += tl.load(v_at)
        k_at += ROWS * kn
        v_at += ROWS * vn
        unit_at += ROWS * DIM
    slot = i_bh.to(tl.int64) * tl.num_programs(0) + split
    tl.store(p_sums + slot * DIM + tl.arange(0, DIM), tl.sum(sums, axis=0))


@triton.jit
def quotient(
    p_grad,
    p_out,
    p_total,
    p_key_fraction,
    first,
    i_bh,
    m_rows,
    queries,
    heads,
    grad_b,
    grad_h,
    grad_n,
    grad_d,
    E,
    output_scale,
    EP: tl.constexpr,
    MASKED: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
):
    """dy and dz of the rows from `first` on."""
    o_d, row = tl.arange(0, EP), i_bh.to(tl.int64) * queries + first
    p_grad_rows = p_grad + head_offset(i_bh, heads, grad_b, grad_h) + first.to(tl.int64) * grad_n
    g = load_rows(p_grad_rows, m_rows, o_d, E, grad_n, grad_d, False).to(tl.float32)  # (ROWS, DP)
    o = load_rows(p_out + row * E, m_rows, o_d, E, E, 1, False).to(tl.float32)  # (ROWS, DP)
    total = tl.load(p_total + row + tl.arange(0, m_rows.shape[0]), mask=m_rows, other=1.0)
    factor = output_factor(
        load_key_fraction(p_key_fraction, i_bh // heads, MASKED), output_scale, SCALE_OUTPUT
    )
    inverse = 1.0 / total
    return g * (inverse * factor)[:, None], -tl.sum(g * o, axis=1) * inverse


@triton.jit
def row_gradients(
    p_grad,
    p_out,
    p_total,
    p_key_fraction,
    p_dy,
    p_dz,
    queries,
    heads,
    grad_strides,
    E,
    output_scale,
    EP: tl.constexpr,
    ROWS: tl.constexpr,
    MASKED: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """From g and o = f y / z: the gradients f g / z and -(g.o) / z of y and z."""
    grad_b, grad_h, grad_n, grad_d = grad_strides
    E, grad_b, grad_h, grad_n = multiples((E, grad_b, grad_h, grad_n), ALIGNMENT)
    first, i_bh = tl.program_id(0) * ROWS, tl.program_id(1)
    m_rows = first + tl.arange(0, ROWS) < queries
    dy, dz = quotient(
        p_grad, p_out, p_total, p_key_fraction, first, i_bh, m_rows, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, output_scale, EP, MASKED, SCALE_OUTPUT,
    )  # fmt: skip
    row = i_bh.to(tl.int64) * queries + first
    store_rows(p_dy + row * E, m_rows, tl.arange(0, EP), E, E, dy)
    tl.store(p_dz + row + tl.arange(0, ROWS), dz, mask=m_rows)


@triton.jit
def weighted_row_gradients(
    p_grad,
    p_out,
    p_total,
    p_key_fraction,
    p_q,
    p_temperature,
    p_dy,
    p_dz,
    p_rows_a,
    p_shifts,
    p_sums,
    sizes,
    grad_strides,
    q_strides,
    coefficients,
    DP: tl.constexpr,
    EP: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    MASKED: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """As `row_gradients`, for the direct kernels, with the sum of dy over the block of rows.

    Where queries are normalized, dy and dz are divided by the length of their query, and the
    coefficient of s^2 is kept for each.
    """
    queries, heads, D, E = sizes
    grad_b, grad_h, grad_n, grad_d = grad_strides
    qb, qh, qn, qd = q_strides
    output_scale, scale, a = coefficients
    D, E, grad_b, grad_h, grad_n, qb, qh, qn = multiples(
        (D, E, grad_b, grad_h, grad_n, qb, qh, qn), ALIGNMENT
    )
    block, i_bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    o_n = tl.arange(0, ROWS)
    m_rows = first + o_n < queries
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    if NORMALIZE:  # read before anything is waited for
        p_q_rows = p_q + head_offset(i_bh, heads, qb, qh) + first.to(tl.int64) * qn
        q = load_rows(p_q_rows, m_rows, o_d, D, qn, qd, False)  # (ROWS, DP)
    dy, dz = quotient(
        p_grad, p_out, p_total, p_key_fraction, first, i_bh, m_rows, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, output_scale, EP, MASKED, SCALE_OUTPUT,
    )  # fmt: skip
    row = i_bh.to(tl.int64) * queries + first
    slot = i_bh.to(tl.int64) * tl.num_programs(0) + block
    tl.store(p_sums + slot * E + o_e, tl.sum(dy, axis=0), mask=o_e < E)
    place = table_offset(i_bh, queries) + table_place(first + o_n)
    if NORMALIZE:
        inverse = row_factors(q, 1.0, True)
        dy, dz = dy * inverse[:, None], dz * inverse
        row_a = a * scale * tl.load(p_temperature + i_bh % heads) * inverse
        tl.store(p_rows_a + place, row_a.to(p_rows_a.dtype.element_ty))
    store_rows(p_dy + row * E, m_rows, o_e, E, E, dy)
    tl.store(p_dz + row + o_n, dz, mask=m_rows)
    tl.store(p_shifts + place, dz.to(p_shifts.dtype.element_ty))


_ROWS = 128


@functools.lru_cache(maxsize=KEPT_CALLS)
def _quotient_launch(call: CallShape, grad_stride: Strides) -> Launch:
    return Launch(
        row_gradients,
        (ceil_div(call.queries, _ROWS), call.batch_heads),
        (call.queries, call.heads, grad_stride, call.width, call.output_scale),
        {
            "EP": call.padded_width,
            "ROWS": _ROWS,
            "MASKED": call.masked,
            "SCALE_OUTPUT": call.normalize_output,
            "ALIGNMENT": alignment_of(call.width, call.width, grad_stride),
        },
    )


def quotient_gradients(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of numerators (B, H, N, E) and denominators (B H, N)."""
    call = p.call
    dy = p.new(call.batch, call.heads, call.queries, call.width, dtype=call.operands)
    dz = p.numbers(call.batch_heads, call.queries)
    _quotient_launch(call, grad.stride())(grad, out, total, p.key_fractions(), dy, dz)
    return dy, dz


class Weighted(NamedTuple):
    """What the backward pass of the direct algorithm takes.

    Where queries are normalized, dy and dz are divided by |q|.

    Attributes:
        dy: Gradients of numerators (B, H, N, E).
        dz: Gradients of denominators (B H, N).
        rows_a: The coefficient of s^2 for each query, s being k.q / |k|, a table (`table_place`);
            any tensor where queries are not normalized.
        shifts: dz once more, a table.
        sum_dy: The sum of dy, never divided by |q| (B H, E).
    """

    dy: Tensor
    dz: Tensor
    rows_a: Tensor
    shifts: Tensor
    sum_dy: Tensor


def _weighted_rows(call: CallShape) -> int:
    """Rows a program: where one does not take all, at most 32 numbers a thread of each tensor."""
    most = _ROWS if call.queries <= _ROWS else 4096 // max(call.padded_dim, call.padded_width)
    return min(_ROWS, most)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _weighted_launch(call: CallShape, grad_stride: Strides) -> Launch:
    rows = _weighted_rows(call)
    sizes, coefficients = (
        (call.queries, call.heads, call.dim, call.width),
        (call.output_scale, call.scale, call.a),
    )
    numbers = (sizes, grad_stride, call.q_stride, coefficients)
    constants = {
        "DP": call.padded_dim,
        "EP": call.padded_width,
        "ROWS": rows,
        "NORMALIZE": call.normalized,
        "MASKED": call.masked,
        "SCALE_OUTPUT": call.normalize_output,
        "ALIGNMENT": alignment_of(call.dim, call.width, grad_stride, call.q_stride),
    }
    steps = ceil_div(call.queries, TABLE_STEP.value)  # full tables
    grid = (steps * TABLE_STEP.value // rows, call.batch_heads)
    return Launch(weighted_row_gradients, grid, numbers, constants)


def weighted_gradients(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Weighted:
    """The gradients of numerators and denominators, for the direct kernels."""
    call = p.call
    launch = _weighted_launch(call, grad.stride())
    dy = p.new(call.batch, call.heads, call.queries, call.width, dtype=call.operands)
    dz = p.numbers(call.batch_heads, call.queries)
    shifts = p.table(call.queries)
    rows_a = p.table(call.queries) if call.normalized else p.q
    sums = p.numbers(call.batch_heads, launch.grid[0], call.width)
    launch(grad, out, total, p.key_fractions(), p.q, p.temperature, dy, dz, rows_a, shifts, sums)
    return Weighted(dy, dz, rows_a, shifts, _added(sums))


@functools.lru_cache(maxsize=KEPT_CALLS)
def _key_sums_launch(call: CallShape) -> Launch:
    constants = {
        "DP": call.padded_dim,
        "EP": call.padded_width,
        "ROWS": _ROWS,
        "NORMALIZE": call.normalized,
        "MASKED": call.masked,
        "ALIGNMENT": call.alignment,
    }
    numbers = (
        (call.heads, call.keys, call.dim, call.width),
        call.k_stride,
        call.v_stride,
        call.a,
        call.b,
    )
    return Launch(key_sums, (ceil_div(call.keys, _ROWS), call.batch_heads), numbers, constants)


class KeySums(NamedTuple):
    """What the direct algorithm takes of keys and values beside themselves.

    Attributes:
        sum_v: The sum of the values attended to (B H, E).
        rows_a: The coefficient of s^2 for each key, s being x.k, a table (`table_place`); any
            tensor where keys are not normalized.
        rows_b: The coefficient of s, likewise.
    """

    sum_v: Tensor
    rows_a: Tensor
    rows_b: Tensor


def sum_keys(p: Problem) -> KeySums:
    """One pass over keys and values, for the direct kernels."""
    call = p.call
    launch = _key_sums_launch(call)
    rows_a, rows_b = coefficient_tables(p)
    sums = p.numbers(call.batch_heads, launch.grid[0], call.width)
    launch(p.k, p.v, p.key_mask, rows_a, rows_b, sums)
    return KeySums(_added(sums), rows_a, rows_b)


def coefficient_tables(p: Problem) -> tuple[Tensor, Tensor]:
    """Room for the coefficients of s^2 and s for each key; any tensors where none are kept."""
    call = p.call
    return (p.table(call.keys), p.table(call.keys)) if call.normalized else (p.k, p.k)


@functools.lru_cache(maxsize=KEPT_CALLS)
def key_splits(call: CallShape) -> int:
    """Among how many programs `unit_keys` splits the keys of a head: no more than run at once."""
    size, splits = call.blocks("prepare_keys"), 1
    most = size.resident * multiprocessors(call.device) // (2 * call.batch_heads)
    while splits <= most and call.keys % (2 * splits * size.block) == 0:
        splits *= 2
    return splits


@functools.lru_cache(maxsize=KEPT_CALLS)
def _prepare_launch(call: CallShape, splits: int) -> Launch:
    size = call.blocks("prepare_keys")
    constants = {
        "DIM": call.dim,
        "ROWS": size.rows,
        "STAGES": size.stages,
        "NORMALIZE": call.normalized,
        **size.options(),
    }
    numbers = (call.heads, call.keys, call.keys // splits, call.k_stride[:3], call.v_stride[:3])
    return Launch(prepare_keys, (splits, call.batch_heads), numbers, constants)


def unit_keys(p: Problem, splits: int, unit: Tensor) -> Tensor:
    """The sum of values (B H, E); k / |k| is written where told if keys are normalized.

    The last bits of sums depend on the splits; all parts of a call use the splits of
    the undivided call.
    """
    call = p.call
    sums = p.numbers(call.batch_heads, splits, call.width)
    _prepare_launch(call, splits)(p.k, p.v, unit, sums)
    return _added(sums)


def _added(parts: Tensor) -> Tensor:
    """Sums over axis 1."""
    return parts.sum(dim=1) if parts.shape[1] != 1 else parts[:, 0]


def temperature_gradient(p: Problem, dt: Tensor) -> Tensor | None:
    """(H,) from the partial sums of queries, of their blocks or of heads (B H, any number)."""
    call = p.call
    return dt.view(call.batch, call.heads, -1).sum(dim=(0, 2)) if call.normalized else None
