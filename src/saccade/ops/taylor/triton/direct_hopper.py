"""The direct algorithm on Hopper: which calls its own kernels take, and in which parts.

Forward, `hopper_forward` takes what `suits_forward` tells of, `direct_forward` everything else.
Blocks of q, k and v are copied by TMA, straight out of a qkv projection if they lie there.

TaylorShift's keys are normalized before, which takes as much memory as they have. Where a backward
pass is to follow, which takes more, they have it. Otherwise heads go in parts, and k / |k| of each
lies in the output of those that come later, which is not written yet. Only the last part has memory
of its own, so little that a call takes at most a quarter more than softmax, which takes the
output, or 16 MiB.

Backward, `hopper_backward`, with five products, takes what `suits_backward` tells of;
`direct_queries` and `direct_keys`, with seven, everything else. Programs of keys add to the
gradients of queries as they come, in another order every time, so that these differ in their last
bits from call to call: where torch is asked for deterministic algorithms, the two kernels run. The
sums are float32 and hold twice the bytes of q until the pass is done, about what softmax's backward
holds.

Gain over the kernels of all devices, at 1,024 to 16,384 tokens (docs/log.md): forward 16 to 20 % at
D = 64 and 22 to 31 % at D = 128 (TaylorShift 8 to 24 % and 18 to 26 %), backward 10 to 25 % and 25
to 29 % (12 to 29 % and 16 to 34 %).

The kernels are written in Gluon, which is experimental: their modules are imported when they are
first needed, and what cannot be imported or compiled is left to the other kernels.
"""

import functools
import importlib
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from saccade.ops._triton.launch import INTERPRETED, Launch, is_dry_run
from saccade.ops.taylor.triton.rows import key_splits, unit_keys
from saccade.ops.taylor.triton.shapes import (
    FREE_BYTES,
    KEPT_CALLS,
    CallShape,
    Problem,
    Strides,
    resized,
)

__all__ = [
    "Backward",
    "attempted",
    "backward_launches",
    "described",
    "has_kernels",
    "is_aligned",
    "run_forward",
]

T = TypeVar("T")

DIMS = (64, 128)
MAX_ROWS = 1 << 31
"""Rows of all heads together: offsets in tables have 32 bits."""
MAX_STRIDE = 1 << 39
"""In numbers of two bytes; what a descriptor holds."""
MAX_ROW_STRIDE = 1 << 23
"""Offsets within a tile have 32 bits."""


def _can_be_described(strides: Strides) -> bool:
    """True if rows are contiguous and start at multiples of 16 bytes."""
    *steps, column = strides
    apart = all(step % 8 == 0 and 0 < step < MAX_STRIDE for step in steps)
    return column == 1 and apart and steps[-1] < MAX_ROW_STRIDE


def has_kernels(call: CallShape) -> bool:
    """Whether the device is a Hopper, and heads are as all of its own kernels want them."""
    if call.capability != (9, 0) or call.dtype != torch.bfloat16 or call.masked:
        return False
    return (
        call.dim in DIMS
        and call.width == call.dim
        and call.batch_heads * max(call.queries, call.keys) < MAX_ROWS
        and all(map(_can_be_described, (call.q_stride, call.k_stride, call.v_stride)))
    )


def is_aligned(p: Problem) -> bool:
    """Whether q, k and v begin at multiples of 16 bytes."""
    return not (p.q.data_ptr() | p.k.data_ptr() | p.v.data_ptr()) & 15


_failed: set[Any] = set()
"""Modules of kernels and the kinds of calls that they did not compile for."""


def attempted(call: CallShape, module: str, make: Callable[[ModuleType], T]) -> T | None:
    """The result of `make` for the kernels of a module, or None if that failed.

    Gluon is experimental, and has other names in other releases of Triton: what cannot be imported
    or compiled is left to the other kernels, with a warning.
    """
    if (module, call.kind) in _failed:
        return None
    try:
        return make(importlib.import_module(f"saccade.ops.taylor.triton.{module}"))
    except Exception as error:
        _failed.add((module, call.kind))
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


MAX_PARTS = 8
"""With few queries and many keys memory is short; more parts would leave most programs idle."""


def suits_forward(call: CallShape) -> bool:
    """Whether the kernel is written for such a call, and for its device."""
    if not has_kernels(call) or call.b == 0:
        return False
    size, least = call.blocks("hopper_forward"), call.blocks("prepare_keys").rows
    return (
        call.queries % size.rows == 0
        and call.keys % max(size.block, least) == 0
        and call.keys >= 2 * size.block
    )


def heads_at_a_time(call: CallShape) -> list[int]:
    """How many normalized heads go at a time, one sample's after another's; none if too large.

    A part consists of samples with all their heads, or of heads of one sample. Parts are counted
    from the end, which gets memory of its own, to the beginning, where all of the output is free.
    """
    unit = call.keys * call.dim * call.dtype.itemsize
    if unit * call.batch_heads <= FREE_BYTES:
        return [call.batch_heads]
    sums = (key_splits(call) + 1) * call.dim  # float32, of a quarter of all heads
    spare = max(FREE_BYTES, call.batch_heads * (call.head_bytes // 4 - 4 * call.queries - sums))
    counts: list[int] = []
    done = 0
    while done < call.batch_heads:
        count = min(call.batch_heads - done, max(spare, done * call.head_bytes) // unit)
        if done % call.heads == 0 and count >= call.heads:
            count -= count % call.heads
        else:
            count = min(count, call.heads - done % call.heads)
        if count == 0 or len(counts) == MAX_PARTS:
            return []
        counts.insert(0, count)
        done += count
    return counts


class Part(NamedTuple):
    """Heads that go together, from the first to before the last, and what is launched for them."""

    first: int
    last: int
    launch: Launch


@functools.lru_cache(maxsize=KEPT_CALLS)
def forward_parts(call: CallShape, *, undivided: bool, dry_run: bool) -> list[Part] | None:
    """The parts of a call, compiled unless only to be noted; None where other kernels take it."""
    if INTERPRETED or not suits_forward(call):
        return None
    counts = [call.batch_heads] if undivided else heads_at_a_time(call)

    def made(kernels: ModuleType) -> list[Part]:
        parts, first = [], 0
        for count in counts:
            batch, heads = max(1, count // call.heads), min(count, call.heads)
            launch: Launch = kernels.forward_launch(resized(call, batch, heads))
            if not dry_run:
                launch.compile(kernels.forward_dtypes(call))
            parts.append(Part(first, first + count, launch))
            first += count
        return parts

    return attempted(call, "direct_hopper_forward", made) if counts else None


def run_forward(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor] | None:
    """Output (B, H, N, E) and row sums over N (B H, N); None where other kernels take the call."""
    call = p.call
    parts = forward_parts(call, undivided=keep or not call.normalized, dry_run=is_dry_run())
    if parts is None or not is_aligned(p):
        return None
    out = p.new(call.batch, call.heads, call.queries, call.width)
    total = p.numbers(call.batch_heads, call.queries)
    splits = key_splits(call)
    if len(parts) == 1:  # slices of everything take longer than a short launch
        _attend(p, splits, parts[0].launch, out, total)
        return out, total
    heads = out.flatten(0, 1)
    for first, last, launch in parts:
        part, here = p.of_heads(first, last), slice(first, last)
        _attend(part, splits, launch, heads[here], total[here], heads[last:])
    return out, total


def _attend(
    p: Problem,
    splits: int,
    launch: Launch,
    out: Tensor,
    total: Tensor,
    later: Tensor | None = None,
) -> None:
    """Write the output and row sums of a part; `later` is the output of those that follow."""
    unit = _scratch(p, later)
    sum_v = unit_keys(p, splits, unit)
    launch(p.q, unit, p.v, p.temperature, sum_v, out, total)


def _scratch(p: Problem, later: Tensor | None) -> Tensor:
    """Where k / |k| of a part is put: in output that comes later if it fits, else in new memory.

    Keys themselves where they are not normalized.
    """
    call = p.call
    if not call.normalized:
        return p.k
    shape = (call.batch, call.heads, call.keys, call.dim)
    size = math.prod(shape)
    if later is None or size > later.numel():
        return p.new(*shape)
    return later.flatten()[:size].view(shape)


MAX_SUMS = 1 << 31
"""Numbers of a head's queries: offsets of their sums have 32 bits."""


def suits_backward(call: CallShape) -> bool:
    """Whether the kernels are written for such a call, and for its device."""
    if not has_kernels(call) or call.queries * call.dim >= MAX_SUMS:
        return False
    size = call.blocks("hopper_backward")
    return call.keys % size.rows == 0 and call.queries % (2 * size.block) == 0


class Backward(NamedTuple):
    """The launches of a backward pass.

    Attributes:
        keys: Gradients of keys and values; those of queries are added up.
        queries: Gradients of queries, from what was added up.
    """

    keys: Launch
    queries: Launch


def backward_launches(call: CallShape, *, dry_run: bool) -> Backward | None:
    """The launches for a call, compiled unless `dry_run`; None where there are none."""
    if torch.are_deterministic_algorithms_enabled():
        return None
    return _launches(call, dry_run=dry_run)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _launches(call: CallShape, *, dry_run: bool) -> Backward | None:
    if INTERPRETED or not suits_backward(call):
        return None
    half, single = torch.bfloat16, torch.float32
    temperature = single if call.normalized else half

    def made(kernels: ModuleType) -> Backward:
        launches = Backward(kernels.keys_launch(call), kernels.queries_launch(call))
        if not dry_run:
            rows = (half, half, half, single)
            launches.keys.compile((half, half, half, temperature, *rows, single, half, half))
            launches.queries.compile((single, half, temperature, half, single))
        return launches

    return attempted(call, "direct_hopper_backward", made)
