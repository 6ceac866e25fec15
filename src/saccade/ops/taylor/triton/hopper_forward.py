"""The direct forward on Hopper: which calls its own kernel takes, in which parts, and its launches.

It takes what `suits_forward` tells of; `direct_forward` takes everything else. Blocks of q, k and v
are copied by TMA, straight out of a qkv projection if they lie there.

TaylorShift's keys are normalized before, which takes as much memory as they have. Where a backward
pass is to follow, which takes more, they have it. Otherwise heads go in parts, and k / |k| of each
lies in the output of those that come later, which is not written yet. Only the last part has memory
of its own, so little that a call takes at most a quarter more than softmax, which takes the
output, or 16 MiB.
"""

import functools
import math
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from saccade.ops.launches import INTERPRETED, Launch, is_dry_run
from saccade.ops.taylor.triton.efficient import FREE_BYTES
from saccade.ops.taylor.triton.hopper import attempted, described, has_kernels, is_aligned
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form, Problem, multiprocessors, resized
from saccade.ops.taylor.triton.rows import key_splits, unit_keys

__all__ = ["Part", "forward_parts", "heads_at_a_time", "run_forward", "suits_forward"]


MAX_PARTS = 8
"""Of few queries with many keys, which find little room, more would leave most programs idle."""


def suits_forward(f: Form) -> bool:
    """Whether the kernel is written for such a call, and for its device."""
    if not has_kernels(f) or f.b == 0:
        return False
    size, least = f.blocks("hopper_forward"), f.blocks("prepare_keys").rows
    return (
        f.queries % size.rows == 0
        and f.keys % max(size.block, least) == 0
        and f.keys >= 2 * size.block
    )


def heads_at_a_time(f: Form) -> list[int]:
    """How many normalized heads go at a time, one sample's after another's; none if too large.

    Each part is whole samples or heads of one. They are counted from the end, where memory is
    given, to the beginning, before which all of the output is free.
    """
    unit = f.keys * f.dim * f.dtype.itemsize
    if unit * f.batch_heads <= FREE_BYTES:
        return [f.batch_heads]
    sums = (key_splits(f) + 1) * f.dim  # float32, of a quarter of all heads
    spare = max(FREE_BYTES, f.batch_heads * (f.head_bytes // 4 - 4 * f.queries - sums))
    counts: list[int] = []
    done = 0
    while done < f.batch_heads:
        count = min(f.batch_heads - done, max(spare, done * f.head_bytes) // unit)
        if done % f.heads == 0 and count >= f.heads:
            count -= count % f.heads
        else:
            count = min(count, f.heads - done % f.heads)
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


@functools.lru_cache(maxsize=KEPT_FORMS)
def forward_parts(f: Form, *, whole: bool, dry_run: bool) -> list[Part] | None:
    """The parts of a call, compiled unless only to be noted; None where other kernels take it."""
    if INTERPRETED or not suits_forward(f):
        return None
    counts = [f.batch_heads] if whole else heads_at_a_time(f)

    def made(kernels: ModuleType) -> list[Part]:
        parts, first = [], 0
        for count in counts:
            batch, heads = max(1, count // f.heads), min(count, f.heads)
            launch = _launch(resized(f, batch, heads), kernels)
            if not dry_run:
                launch.compile(_dtypes(f))
            parts.append(Part(first, first + count, launch))
            first += count
        return parts

    return attempted(f, "hopper_forward_kernels", made) if counts else None


def _dtypes(f: Form) -> tuple[torch.dtype, ...]:
    """Those of the tensors that the kernel takes."""
    half, single = torch.bfloat16, torch.float32
    return half, half, half, single if f.normalized else half, single, half, single


def _launch(f: Form, kernels: ModuleType) -> Launch:
    size = f.blocks("hopper_forward")
    tiles = f.queries // size.rows * f.batch_heads
    coefficients = (f.scale, 1 / f.keys, f.a / f.b, f.b, f.c, f.floor, f.lift)
    constants = {
        "DIM": f.dim,
        "ROWS": size.rows,
        "BLOCK": size.block,
        "SLOTS": size.stages,
        "NORMALIZE": f.normalized,
        **size.options(),
    }
    head = f.keys * f.dim
    k_stride = (f.heads * head, head, f.dim, 1) if f.normalized else f.k_stride
    copied = (
        (f.queries, f.q_stride, size.rows // 2),
        (f.keys, k_stride, size.block),
        (f.keys, f.v_stride, size.block),
    )
    descriptors = {
        place: described(
            kernels.block_descriptor(f.dtype, [f.batch, f.heads, n, f.dim], list(stride), rows)
        )
        for place, (n, stride, rows) in enumerate(copied)
    }
    numbers = (f.heads, f.queries, f.keys, tiles, *coefficients)
    grid = (min(tiles, size.resident * multiprocessors(f.device)),)
    return Launch(kernels.hopper_forward, grid, numbers, constants, descriptors)


def run_forward(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor] | None:
    """Output (B, H, N, E) and row sums over N (B H, N); None where other kernels take the call."""
    f = p.form
    parts = forward_parts(f, whole=keep or not f.normalized, dry_run=is_dry_run())
    if parts is None or not is_aligned(p):
        return None
    out = p.new(f.batch, f.heads, f.queries, f.width)
    total = p.numbers(f.batch_heads, f.queries)
    splits = key_splits(f)
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
    unit = _room(p, later)
    sum_v = unit_keys(p, splits, unit)
    launch(p.q, unit, p.v, p.temperature, sum_v, out, total)


def _room(p: Problem, later: Tensor | None) -> Tensor:
    """Where k / |k| of a part is put: in output that comes later if it fits, else in new memory.

    Keys themselves where they are not normalized.
    """
    f = p.form
    if not f.normalized:
        return p.k
    shape = (f.batch, f.heads, f.keys, f.dim)
    size = math.prod(shape)
    if later is None or size > later.numel():
        return p.new(*shape)
    return later.flatten()[:size].view(shape)
