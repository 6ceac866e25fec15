"""Passes over single rows: sums of values, coefficients of keys, gradients of quotients."""

import functools
from typing import NamedTuple

from torch import Tensor

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton.blocks import TABLE_STEP
from saccade.ops.taylor.triton.problem import (
    KEPT_FORMS,
    Form,
    Problem,
    Strides,
    ceil_div,
    grain_of,
    multiprocessors,
)
from saccade.ops.taylor.triton.row_kernels import (
    key_sums,
    prepare_keys,
    row_gradients,
    weighted_row_gradients,
)

__all__ = [
    "KeySums",
    "Weighted",
    "coefficient_tables",
    "key_splits",
    "quotient_gradients",
    "sum_keys",
    "temperature_gradient",
    "unit_keys",
    "weighted_gradients",
]

_ROWS = 128


@functools.lru_cache(maxsize=KEPT_FORMS)
def _quotient_launch(f: Form, grad_stride: Strides) -> Launch:
    return Launch(
        row_gradients,
        (ceil_div(f.queries, _ROWS), f.batch_heads),
        (f.queries, f.heads, *grad_stride, f.width, f.lift),
        {
            "EP": f.padded_width,
            "ROWS": _ROWS,
            "MASKED": f.masked,
            "LIFT": f.normalize_output,
            "GRAIN": grain_of(f.width, f.width, grad_stride),
        },
    )


def quotient_gradients(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of numerators (B, H, N, E) and denominators (B H, N)."""
    f = p.form
    dy = p.new(f.batch, f.heads, f.queries, f.width, dtype=f.operands)
    dz = p.numbers(f.batch_heads, f.queries)
    _quotient_launch(f, grad.stride())(grad, out, total, p.shares(), dy, dz)
    return dy, dz


class Weighted(NamedTuple):
    """What the backward pass of the direct algorithm takes.

    Where queries are normalized, dy and dz are divided by |q|.

    Attributes:
        dy: Gradients of numerators (B, H, N, E).
        dz: Gradients of denominators (B H, N).
        curves: The coefficient of s^2 for each query, s being k.q / |k|, a table (`table_place`);
            any tensor where queries are not normalized.
        shifts: dz once more, a table.
        sum_dy: The sum of dy, never divided by |q| (B H, E).
    """

    dy: Tensor
    dz: Tensor
    curves: Tensor
    shifts: Tensor
    sum_dy: Tensor


def _weighted_rows(f: Form) -> int:
    """Rows a program: where one does not take all, at most 32 numbers a thread of each tensor."""
    most = _ROWS if f.queries <= _ROWS else 4096 // max(f.padded_dim, f.padded_width)
    return min(_ROWS, most)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _weighted_launch(f: Form, grad_stride: Strides) -> Launch:
    rows = _weighted_rows(f)
    numbers = (
        f.queries, f.heads, f.dim, f.width, *grad_stride, *f.q_stride, f.lift, f.scale, f.a
    )  # fmt: skip
    constants = {
        "DP": f.padded_dim,
        "EP": f.padded_width,
        "ROWS": rows,
        "NORMALIZE": f.normalized,
        "MASKED": f.masked,
        "LIFT": f.normalize_output,
        "GRAIN": grain_of(f.dim, f.width, grad_stride, f.q_stride),
    }
    steps = ceil_div(f.queries, TABLE_STEP.value)  # whole tables
    grid = (steps * TABLE_STEP.value // rows, f.batch_heads)
    return Launch(weighted_row_gradients, grid, numbers, constants)


def weighted_gradients(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Weighted:
    """The gradients of numerators and denominators, for the direct kernels."""
    f = p.form
    launch = _weighted_launch(f, grad.stride())
    dy = p.new(f.batch, f.heads, f.queries, f.width, dtype=f.operands)
    dz = p.numbers(f.batch_heads, f.queries)
    shifts = p.table(f.queries)
    curves = p.table(f.queries) if f.normalized else p.q
    sums = p.numbers(f.batch_heads, launch.grid[0], f.width)
    launch(grad, out, total, p.shares(), p.q, p.temperature, dy, dz, curves, shifts, sums)
    return Weighted(dy, dz, curves, shifts, _added(sums))


@functools.lru_cache(maxsize=KEPT_FORMS)
def _key_sums_launch(f: Form) -> Launch:
    constants = {
        "DP": f.padded_dim,
        "EP": f.padded_width,
        "ROWS": _ROWS,
        "NORMALIZE": f.normalized,
        "MASKED": f.masked,
        "GRAIN": f.grain,
    }
    numbers = (f.heads, f.keys, f.dim, f.width, *f.k_stride, *f.v_stride, f.a, f.b)
    return Launch(key_sums, (ceil_div(f.keys, _ROWS), f.batch_heads), numbers, constants)


class KeySums(NamedTuple):
    """What the direct algorithm takes of keys and values beside themselves.

    Attributes:
        sum_v: The sum of the values attended to (B H, E).
        curves: The coefficient of s^2 for each key, s being x.k, a table (`table_place`); any
            tensor where keys are not normalized.
        slopes: The coefficient of s likewise.
    """

    sum_v: Tensor
    curves: Tensor
    slopes: Tensor


def sum_keys(p: Problem) -> KeySums:
    """One pass over keys and values, for the direct kernels."""
    f = p.form
    launch = _key_sums_launch(f)
    curves, slopes = coefficient_tables(p)
    sums = p.numbers(f.batch_heads, launch.grid[0], f.width)
    launch(p.k, p.v, p.key_mask, curves, slopes, sums)
    return KeySums(_added(sums), curves, slopes)


def coefficient_tables(p: Problem) -> tuple[Tensor, Tensor]:
    """Room for the coefficients of s^2 and s for each key; any tensors where none are kept."""
    f = p.form
    return (p.table(f.keys), p.table(f.keys)) if f.normalized else (p.k, p.k)


@functools.lru_cache(maxsize=KEPT_FORMS)
def key_splits(f: Form) -> int:
    """Among how many programs `unit_keys` splits the keys of a head: no more than run at once."""
    size, splits = f.blocks("prepare_keys"), 1
    most = size.resident * multiprocessors(f.device) // (2 * f.batch_heads)
    while splits <= most and f.keys % (2 * splits * size.block) == 0:
        splits *= 2
    return splits


@functools.lru_cache(maxsize=KEPT_FORMS)
def _prepare_launch(f: Form, splits: int) -> Launch:
    size = f.blocks("prepare_keys")
    constants = {
        "DIM": f.dim,
        "ROWS": size.rows,
        "STAGES": size.stages,
        "NORMALIZE": f.normalized,
        **size.options(),
    }
    numbers = (f.heads, f.keys, f.keys // splits, *f.k_stride[:3], *f.v_stride[:3])
    return Launch(prepare_keys, (splits, f.batch_heads), numbers, constants)


def unit_keys(p: Problem, splits: int, unit: Tensor) -> Tensor:
    """The sum of values (B H, E); k / |k| is written where told if keys are normalized.

    The last bits of sums depend on the splits, which are those of a whole call in all its parts.
    """
    f = p.form
    sums = p.numbers(f.batch_heads, splits, f.width)
    _prepare_launch(f, splits)(p.k, p.v, unit, sums)
    return _added(sums)


def _added(parts: Tensor) -> Tensor:
    """Sums over axis 1."""
    return parts.sum(dim=1) if parts.shape[1] != 1 else parts[:, 0]


def temperature_gradient(p: Problem, dt: Tensor) -> Tensor | None:
    """(H,) from shares of queries, of blocks of them or of heads (B H, any number)."""
    f = p.form
    return dt.view(f.batch, f.heads, -1).sum(dim=(0, 2)) if f.normalized else None
