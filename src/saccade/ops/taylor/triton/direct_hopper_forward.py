"""The direct forward for Hopper, in Gluon: a warp that copies, two warpgroups that compute.

k, v, o and z are as in `direct`. Queries are taken as they are, s = q.k, TaylorShift's keys
come as k / |k| (`prepare_keys`), and a weight less its constant is

    w' = row_scale (s + row_ratio s^2),    row_ratio = a alpha / b,    row_scale = b alpha

where alpha is a factor of the row: the scale, for TaylorShift times t / |q|. The loop computes
w = s + row_ratio s^2; the output is multiplied by row_scale when a tile is done.

A program takes every n-th tile of ROWS queries, n programs being at once, and each of its two
warpgroups half of a tile's rows. The blocks of keys and values that its tiles meet are one
sequence. For each of them a warpgroup

    forms   w_g = t_g u_g,  t_g = s_g and u_g = 1 + row_ratio s_g, when all before is done,
    issues  s_{g+1} = q k_{g+1}^T  and  o += w_g v_g,
    and forms t_{g+1} and u_{g+1} as soon as s_{g+1} is there, while w_g v_g runs on

where block g + 1 may be the next tile's first. w_g is written where no product in flight reads it,
so one copy of the loop will do. Warpgroups wait for copies and not for each other, and drift apart:
one has products in flight while the other has none.

Block g of k and of v lies in slot g % SLOTS, the queries of a program's i-th tile in slot i % 2. A
slot is full when its copy, by TMA, has landed, and empty when both warpgroups have arrived: with k
after s_g, with v after w_g v_g, with queries after the tile has been waited for. The warp that
copies waits for a slot to be empty before it fills it, so nothing is overwritten that is read. A
barrier's phase goes 0, 1, 0, ... as it is completed; to wait for phase 1 of a fresh one is to pass.

Wants bfloat16, D = E, no mask, b other than 0, whole tiles and blocks, two blocks or more, four
warps, which are those of one warpgroup.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.tiles import multiprocessors
from saccade.ops.taylor.triton.direct_hopper import described
from saccade.ops.taylor.triton.hopper_library import (
    all_warps_here,
    block_descriptor,
    copy_block,
    rounded,
    row_pointers,
    rows_layout,
    scale_add,
    split_warps,
)
from saccade.ops.taylor.triton.library import NORM_EPS
from saccade.ops.taylor.triton.shapes import CallShape

__all__ = []


@gluon.jit
def eighths(w):
    """For each row the sums of every eighth of its columns."""
    for _ in gl.static_range(5):
        if w.shape[1] > 8:
            halves = gl.reshape(w, (w.shape[0], 2, w.shape[1] // 2))
            w, other = gl.split(gl.permute(halves, (0, 2, 1)))
            w = scale_add(w, 1.0, other)
    return w.to(gl.float32)


@gluon.jit
def head_of(tile, tiles, per_head, heads):
    """(sample, head) of a tile, or of the last where there is none."""
    i_bh = gl.minimum(tile, tiles - 1) // per_head
    return i_bh // heads, i_bh % heads


@gluon.jit
def start_scores(x, k, SCORES: gl.constexpr):
    """x k^T, left in flight; k is (1, 1, BLOCK, D) in shared memory."""
    ROWS: gl.constexpr = x.shape[0]
    BLOCK: gl.constexpr = k.shape[2]
    none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    k = k.reshape([BLOCK, k.shape[3]]).permute((1, 0))
    return warpgroup_mma(x, k, none, use_acc=False, is_async=True)


@gluon.jit
def halfway(s, row_ratio):
    """t and u in bfloat16."""
    t = rounded(s)
    return t, scale_add(t, row_ratio, 1.0)


@gluon.jit
def next_slot(slot, phase, SLOTS: gl.constexpr):
    """The slot after this one, and its phase."""
    slot += 1
    return gl.where(slot == SLOTS, 0, slot), gl.where(slot == SLOTS, 1 - phase, phase)


@gluon.jit
def copy_queries(q_desc, tile, slot, phase, xs, x_full, x_empty, tiles, per_head, heads):
    """Copy both halves of a tile's queries, of the last one where there is none."""
    HALF: gl.constexpr = xs.shape[3]
    sample, head = head_of(tile, tiles, per_head, heads)
    row = gl.minimum(tile, tiles - 1) % per_head * (2 * HALF)
    mbarrier.wait(x_empty.index(slot), phase)
    mbarrier.expect(x_full.index(slot), 2 * q_desc.block_type.nbytes)
    copy_block(q_desc, [sample, head, row, 0], x_full.index(slot), xs.index(2 * slot))
    copy_block(q_desc, [sample, head, row + HALF, 0], x_full.index(slot), xs.index(2 * slot + 1))


@gluon.jit
def copy_rows(desc, place, slot, phase, buffers, full, empty):
    """Copy a block of keys or values into a slot once it is empty."""
    mbarrier.wait(empty.index(slot), phase)
    mbarrier.expect(full.index(slot), desc.block_type.nbytes)
    copy_block(desc, place, full.index(slot), buffers.index(slot))


@gluon.jit
def copy_all(tensors, buffers, places):
    """All that a program's tiles take, by one warp."""
    q_desc, k_desc, v_desc = tensors
    xs, ks, vs, x_full, k_full, v_full, x_empty, k_empty, v_empty = buffers
    begin, programs, tiles, per_head, heads, keys = places
    slot, phase = begin * 0, begin * 0 + 1
    x_slot, x_phase = begin * 0 + 1, begin * 0 + 1
    copy_queries(q_desc, begin, 0, 1, xs, x_full, x_empty, tiles, per_head, heads)
    for tile in range(begin, tiles, programs):
        sample, head = head_of(tile, tiles, per_head, heads)
        for row in range(0, keys, ks.shape[3]):
            copy_rows(k_desc, [sample, head, row, 0], slot, phase, ks, k_full, k_empty)
            copy_rows(v_desc, [sample, head, row, 0], slot, phase, vs, v_full, v_empty)
            slot, phase = next_slot(slot, phase, ks.shape[0])
        copy_queries(
            q_desc, tile + programs, x_slot, x_phase, xs, x_full, x_empty, tiles, per_head, heads
        )
        x_slot, x_phase = next_slot(x_slot, x_phase, 2)
    # The step from the last tile to one that does not exist takes a block of keys as well.
    sample, head = head_of(tiles, tiles, per_head, heads)
    copy_rows(k_desc, [sample, head, 0, 0], slot, phase, ks, k_full, k_empty)


@gluon.jit
def row_factor(x, head, p_temperature, scale, NORMALIZE: gl.constexpr, SUMS: gl.constexpr):
    """alpha of each row, x being (1, 1, rows, D) in shared memory; a number where all have one."""
    alpha = scale
    if NORMALIZE:
        LAYOUT: gl.constexpr = rows_layout(x.shape[3], gl.num_warps())
        x = x.reshape([x.shape[2], x.shape[3]]).load(LAYOUT).to(gl.float32)
        length = gl.maximum(gl.sqrt(gl.sum(x * x, axis=1)), NORM_EPS)
        alpha = gl.convert_layout(scale * gl.load(p_temperature + head) / length, SUMS)
    return alpha


@gluon.jit
def row_ratio_of(alpha, ratio, NORMALIZE: gl.constexpr, SCORES: gl.constexpr):
    """The coefficient of s^2 beside 1 for s, ratio being a / b."""
    row_ratio = (ratio * alpha).to(gl.bfloat16)
    if NORMALIZE:
        row_ratio = gl.convert_layout(row_ratio, gl.SliceLayout(1, SCORES))[:, None]
    return row_ratio


@gluon.jit
def step(
    x,
    t,
    u,
    acc,
    at,
    inner,
    row_ratio,
    following,
    buffers,
    LATE: gl.constexpr,
    SCORES: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """Issue s of the next block and w v of this; the next t and u, o, the sums of w, new slots.

    Args:
        x: Queries of the next block's tile.
        t: Of this block.
        u: Likewise; any tensor where LATE, and formed from t here: two are too many to keep.
        acc: o, still in flight.
        at: Slot and phase of the next block of k, and of this one of v.
        inner: Whether the block before this one has the same tile.
        row_ratio: a alpha / b of the rows of this block's tile.
        following: The same for the next block's tile.
        buffers: As in `hopper_forward`.
        LATE: Where blocks have 128 keys.
        SCORES: Layout of s.
        OPERAND: Layout of w, as the left of a product.
    """
    _, ks, vs, _, k_full, v_full, _, k_empty, v_empty = buffers
    k_slot, k_phase, v_slot, v_phase = at
    acc = warpgroup_mma_wait(0, [acc])
    before = gl.where(v_slot == 0, vs.shape[0] - 1, v_slot - 1)
    mbarrier.arrive(v_empty.index(before), count=1, pred=inner)
    mbarrier.wait(k_full.index(k_slot), k_phase)
    mbarrier.wait(v_full.index(v_slot), v_phase)
    if LATE:
        u = scale_add(t, row_ratio, 1.0)
    w = scale_add(t, u, -0.0)
    s = start_scores(x, ks.index(k_slot), SCORES)
    v = vs.index(v_slot).reshape([vs.shape[3], vs.shape[4]])
    acc = warpgroup_mma(gl.convert_layout(w, OPERAND), v, acc, is_async=True)
    part = gl.convert_layout(eighths(w), SCORES, assert_trivial=True)
    s = warpgroup_mma_wait(1, [s])
    mbarrier.arrive(k_empty.index(k_slot), count=1)
    t, u = halfway(s, following)
    if LATE:
        u = t
    k_slot, k_phase = next_slot(k_slot, k_phase, ks.shape[0])
    v_slot, v_phase = next_slot(v_slot, v_phase, vs.shape[0])
    return t, u, acc, part, (k_slot, k_phase, v_slot, v_phase)


@gluon.jit
def finish(acc, sums, row_scale, i_bh, row, pointers, numbers, OUT: gl.constexpr):
    """Write o and z of rows from `row` on."""
    p_sum_v, p_out, p_total = pointers
    inv_keys, c, min_weight, output_scale = numbers
    ROWS: gl.constexpr = acc.shape[0]
    DIM: gl.constexpr = acc.shape[1]
    SUMS: gl.constexpr = gl.SliceLayout(1, OUT)
    row_scale = row_scale * inv_keys
    z = gl.maximum(gl.convert_layout(gl.sum(sums, axis=1), SUMS) * row_scale + c, min_weight)
    z = gl.where(z > 0, z, 1.0)
    row_weight = output_scale / z
    constant = (
        c * inv_keys * gl.load(p_sum_v + i_bh * DIM + gl.arange(0, DIM, gl.SliceLayout(0, OUT)))
    )
    o = acc * (row_weight * row_scale)[:, None] + constant[None, :] * row_weight[:, None]
    o = gl.convert_layout(o.to(gl.bfloat16), rows_layout(DIM, gl.num_warps()))
    gl.store(row_pointers(p_out + row * DIM, DIM, ROWS, DIM), o)
    gl.store(p_total + row + gl.arange(0, ROWS, SUMS), z)


@gluon.jit
def attend(which, pointers, buffers, places, numbers, NORMALIZE: gl.constexpr):
    """o and z of one half of each tile's rows, by a warpgroup."""
    p_temperature, p_sum_v, p_out, p_total = pointers
    xs, ks, _, x_full, k_full, _, x_empty, k_empty, v_empty = buffers
    begin, programs, tiles, per_head, heads, keys = places
    scale, inv_keys, ratio, b, c, min_weight, output_scale = numbers
    BLOCK: gl.constexpr = ks.shape[3]
    DIM: gl.constexpr = ks.shape[4]
    ROWS: gl.constexpr = xs.shape[3]
    LATE: gl.constexpr = BLOCK == 128
    W: gl.constexpr = gl.num_warps()
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, BLOCK, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, DIM, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    SUMS: gl.constexpr = gl.SliceLayout(1, OUT)

    zero = begin * 0
    mbarrier.wait(x_full.index(0), 0)
    mbarrier.wait(k_full.index(0), 0)
    head = head_of(begin, tiles, per_head, heads)[1]
    alpha = row_factor(xs.index(which), head, p_temperature, scale, NORMALIZE, SUMS)
    row_ratio = row_ratio_of(alpha, ratio, NORMALIZE, SCORES)
    x = xs.index(which).reshape([ROWS, DIM])
    s = warpgroup_mma_wait(0, [start_scores(x, ks.index(0), SCORES)])
    mbarrier.arrive(k_empty.index(0), count=1)
    t, u = halfway(s, row_ratio)
    if LATE:
        u = t
    at = (zero + 1, zero, zero, zero)
    # Slots of queries hold both halves; `fill` is the phase of the other one.
    mine, other, fill = which, which + 2, zero
    for tile in range(begin, tiles, programs):
        acc = warpgroup_mma_init(gl.zeros([ROWS, DIM], gl.float32, OUT))
        sums = gl.zeros([ROWS, 8], gl.float32, SCORES)
        for block in range(keys // BLOCK - 1):
            x = xs.index(mine).reshape([ROWS, DIM])
            t, u, acc, part, at = step(
                x, t, u, acc, at, block != 0, row_ratio, row_ratio, buffers, LATE, SCORES, OPERAND
            )
            sums += part
        # And the step to the first block of the next tile.
        mbarrier.wait(x_full.index(other // 2), fill)
        head = head_of(tile + programs, tiles, per_head, heads)[1]
        following = row_factor(xs.index(other), head, p_temperature, scale, NORMALIZE, SUMS)
        before, row_ratio = row_ratio, row_ratio_of(following, ratio, NORMALIZE, SCORES)
        x, v_slot = xs.index(other).reshape([ROWS, DIM]), at[2]
        t, u, acc, part, at = step(
            x, t, u, acc, at, True, before, row_ratio, buffers, LATE, SCORES, OPERAND
        )
        sums += part
        acc = warpgroup_mma_wait(0, [acc])
        if NORMALIZE:
            fence_async_shared()  # threads have read queries, whose slot a copy is to write
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        mbarrier.arrive(x_empty.index(mine // 2), count=1)
        i_bh = (tile // per_head).to(gl.int64)
        row = i_bh * (per_head * 2 * ROWS) + tile % per_head * (2 * ROWS) + which * ROWS
        written, constants = (p_sum_v, p_out, p_total), (inv_keys, c, min_weight, output_scale)
        finish(acc, sums, b * alpha, i_bh, row, written, constants, OUT)
        alpha = following
        # Slot 1 is filled first, then 0 and 1 for the second time, and so on.
        fill = gl.where(mine < 2, 1 - fill, fill)
        mine, other = other, mine


@gluon.jit
def full_and_empty(SLOTS: gl.constexpr):
    """Barriers of slots: one copy fills them, two warpgroups leave them."""
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    return full, empty


@gluon.jit(do_not_specialize=["heads", "tiles"])
def hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    p_temperature,
    p_sum_v,
    p_out,
    p_total,
    heads,
    queries,
    keys,
    tiles,
    coefficients,
    DIM: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,
    NORMALIZE: gl.constexpr,
):
    """o and z of tiles of queries."""
    ks = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, BLOCK, DIM], k_desc.layout)
    vs = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, BLOCK, DIM], v_desc.layout)
    xs = gl.allocate_shared_memory(gl.bfloat16, [4, 1, 1, ROWS // 2, DIM], q_desc.layout)
    x_full, x_empty = full_and_empty(2)
    k_full, k_empty = full_and_empty(SLOTS)
    v_full, v_empty = full_and_empty(SLOTS)
    fence_async_shared()
    all_warps_here()
    begin = gl.program_id(0)
    places = (begin, gl.num_programs(0), tiles, queries // ROWS, heads, keys)
    buffers = (xs, ks, vs, x_full, k_full, v_full, x_empty, k_empty, v_empty)
    pointers = (p_temperature, p_sum_v, p_out, p_total)
    split_warps(
        [
            (attend, (begin * 0, pointers, buffers, places, coefficients, NORMALIZE)),
            (attend, (begin * 0 + 1, pointers, buffers, places, coefficients, NORMALIZE)),
            (copy_all, ((q_desc, k_desc, v_desc), buffers, places)),
        ],
        [4, 1],
    )


def forward_dtypes(call: CallShape) -> tuple[torch.dtype, ...]:
    """Those of the tensors that the kernel takes."""
    half, single = torch.bfloat16, torch.float32
    return half, half, half, single if call.normalized else half, single, half, single


def forward_launch(call: CallShape) -> Launch:
    """The launch of `hopper_forward` for heads that go together."""
    size = call.blocks("hopper_forward")
    tiles = call.queries // size.rows * call.batch_heads
    coefficients = (
        call.scale,
        1 / call.keys,
        call.a / call.b,
        call.b,
        call.c,
        call.min_weight,
        call.output_scale,
    )
    constants = {
        "DIM": call.dim,
        "ROWS": size.rows,
        "BLOCK": size.block,
        "SLOTS": size.stages,
        "NORMALIZE": call.normalized,
        **size.options(),
    }
    head = call.keys * call.dim
    k_stride = (call.heads * head, head, call.dim, 1) if call.normalized else call.k_stride
    copied = (
        (call.queries, call.q_stride, size.rows // 2),
        (call.keys, k_stride, size.block),
        (call.keys, call.v_stride, size.block),
    )
    descriptors = {
        place: described(
            block_descriptor(call.dtype, [call.batch, call.heads, n, call.dim], list(stride), rows)
        )
        for place, (n, stride, rows) in enumerate(copied)
    }
    numbers = (call.heads, call.queries, call.keys, tiles, coefficients)
    grid = (min(tiles, size.resident * multiprocessors(call.device)),)
    return Launch(hopper_forward, grid, numbers, constants, descriptors)
