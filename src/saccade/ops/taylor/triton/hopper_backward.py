"""The direct backward on Hopper with five products: which calls take it, grids and descriptors.

`hopper_backward_kernels` take what `suits_backward` tells of; `direct_queries` and `direct_keys`,
with seven products, everything else. Programs of keys add to the gradients of queries as they come,
in another order every time, so that these differ in their last bits from call to call: where torch
is asked for deterministic algorithms, the two kernels run. The sums are float32 and hold twice the
bytes of q until the pass is done, about what softmax's backward holds.
"""

import functools
from types import ModuleType
from typing import NamedTuple

import torch

from saccade.ops.launches import INTERPRETED, Launch
from saccade.ops.taylor.triton.hopper import attempted, described, has_kernels
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form

__all__ = ["Backward", "backward_launches", "suits_backward"]

MAX_APART = 64
"""The widest heads that have registers for places in memory apart."""
MAX_SUMS = 1 << 31
"""Numbers of a head's queries: offsets of their sums have 32 bits."""


def suits_backward(f: Form) -> bool:
    """Whether the kernels are written for such a call, and for its device."""
    if not has_kernels(f) or f.queries * f.dim >= MAX_SUMS:
        return False
    size = f.blocks("hopper_backward")
    return f.keys % size.rows == 0 and f.queries % (2 * size.block) == 0


class Backward(NamedTuple):
    """The launches of a backward pass.

    Attributes:
        keys: Gradients of keys and values; those of queries are added up.
        queries: Gradients of queries, from what was added up.
    """

    keys: Launch
    queries: Launch


def backward_launches(f: Form, *, dry_run: bool) -> Backward | None:
    """The launches for a form, compiled unless only to be noted; None where there are none."""
    if torch.are_deterministic_algorithms_enabled():
        return None
    return _launches(f, dry_run=dry_run)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _launches(f: Form, *, dry_run: bool) -> Backward | None:
    if INTERPRETED or not suits_backward(f):
        return None
    half, single = torch.bfloat16, torch.float32
    temperature = single if f.normalized else half

    def made(kernels: ModuleType) -> Backward:
        launches = Backward(_keys_launch(f, kernels), _queries_launch(f, kernels))
        if not dry_run:
            rows = (half, half, half, single)
            launches.keys.compile((half, half, half, temperature, *rows, single, half, half))
            launches.queries.compile((single, half, temperature, half, single))
        return launches

    return attempted(f, "hopper_backward_kernels", made)


def _keys_launch(f: Form, kernels: ModuleType) -> Launch:
    size, block = f.blocks("hopper_backward"), kernels.block_descriptor
    coefficients = (f.scale, 1 / f.keys, f.a, f.b, f.c)
    numbers = (f.heads, f.queries, f.keys, *f.k_stride[:3], *f.v_stride[:3], *coefficients)
    constants = {
        "DIM": f.dim,
        "ROWS": size.rows,
        "BLOCK": size.block,
        "SLOTS": size.stages,
        "APART": f.dim <= MAX_APART and f.queries % (size.stages * size.block) == 0,
        "NORMALIZE": f.normalized,
        **size.options(),
    }
    shape = [f.batch, f.heads, f.queries, f.dim]
    _, _, dy_stride = f.rows(of_queries=True)
    descriptors = {
        0: described(block(f.dtype, shape, list(f.q_stride), size.block)),
        6: described(block(f.dtype, shape, list(dy_stride), size.block)),
    }
    grid = (f.keys // size.rows, f.batch_heads)
    return Launch(kernels.hopper_backward, grid, numbers, constants, descriptors)


def _queries_launch(f: Form, kernels: ModuleType) -> Launch:
    size = f.blocks("hopper_backward")
    numbers = (f.heads, f.queries, *f.q_stride[:3], f.scale, 1 / f.keys)
    constants = {
        "DIM": f.dim,
        "BLOCK": size.block,
        "NORMALIZE": f.normalized,
        **size.options(),
    }
    grid = (f.queries // size.block, f.batch_heads)
    return Launch(kernels.query_gradients, grid, numbers, constants)
