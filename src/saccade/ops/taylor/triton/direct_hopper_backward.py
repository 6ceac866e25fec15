"""The direct backward for Hopper, in Gluon: five products for each pair of blocks.

w, s, ds, dv, dk and dx are as in `direct`, t is dy.v. A program holds ROWS keys with their
dk and dv. Blocks of queries and of dy go by, copied by TMA; step j of them

    issues  s_j = k q_j^T  and  t_j = v dy_j^T,  and waits for them,
    forms ds_j, puts it into shared memory, where all warps find it after a barrier,
    issues  dx_j = ds_j^T k,  dv += w_j dy_j,  dk += ds_j q_j,
    and adds dx_j to the sums of its queries in memory, while dv and dk run on

The sums are float32, zero at first and in an order of their own (`sums_layout`), in which each
thread adds four numbers at once; `query_gradients` brings them into rows. At D = 64 k and v are in
registers too, and dv and dk run on beside s_{j+1} and t_{j+1}. At D = 128 there are registers for
neither: dv and dk are waited for.

The barrier in `copy_pair` is all that a step needs. When warps meet there in step j, each has
waited for all that it issued before, dv_{j-1} and dk_{j-1} among it: nobody reads block j - 1 any
more, and block j - 1 + SLOTS takes its place. That place's own barrier, by which warps learn that a
block is in, is set up anew by one of them a little earlier, but after all met in step j - 1, and so
after all had found block j - 1 there. ds has two places: whoever writes ds_j has met the others in
step j - 1, when all had waited for dx_{j-2}, the last to read what it overwrites.

Triton 3.6 adds two more barriers if places are indexed in one allocation, since it cannot tell
which are meant. With APART each place is an allocation of its own, and a ring pass has SLOTS steps,
so that each step knows its places and no barrier is added (3.9 adds four all the same). At D = 128
the addresses of so many allocations would not fit into registers.

Wants bfloat16, D = E of 64 or 128, no mask, full blocks, full ring passes (of two blocks where
places are not APART), SLOTS = 4 or more and a power of two, and eight warps.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

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
from saccade.ops.taylor.triton.direct_hopper import described
from saccade.ops.taylor.triton.hopper_library import (
    all_warps_here,
    block_descriptor,
    copy_block,
    load_table,
    operand_layout,
    rounded,
    row_pointers,
    rows_layout,
    scale_add,
)
from saccade.ops.taylor.triton.library import NORM_EPS
from saccade.ops.taylor.triton.shapes import CallShape

__all__ = []

LATER = gl.constexpr("and.b32 $0, $1, 0;")


@gluon.constexpr_function
def sums_product(dim, warps):
    """A product (64, dim): warpgroups have all rows, and some columns each."""
    groups = warps // 4
    return gl.NVMMADistributedLayout([3, 0], [4, groups], [16, dim // groups, 16])


@gluon.constexpr_function
def sums_layout(dim, warps):
    """The numbers of such a product in a row, those that a thread has by fours."""
    lanes = [[4 << i] for i in range(5)]
    warp = [[128 << i] for i in range(warps.bit_length() - 1)]
    step = 128 * warps
    registers = [[1], [2]] + [[step << i] for i in range((64 * dim // step).bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, warp, [], [64 * dim])


@gluon.jit
def in_a_row(x):
    """A product (64, DIM) in the order of `sums_layout`."""
    DIM: gl.constexpr = x.shape[1]
    GROUPS: gl.constexpr = gl.num_warps() // 4
    # rows: warp, half, lane; columns: warpgroup, eight, lane, one of two
    x = gl.reshape(x, (4, 2, 8, GROUPS, DIM // (8 * GROUPS), 4, 2))
    x = gl.reshape(gl.permute(x, (4, 3, 0, 2, 5, 1, 6)), (64 * DIM,))
    return gl.convert_layout(x, sums_layout(DIM, gl.num_warps()), assert_trivial=True)


@gluon.jit
def in_rows(x, DIM: gl.constexpr):
    """What `in_a_row` made of (64, DIM), back."""
    GROUPS: gl.constexpr = gl.num_warps() // 4
    x = gl.reshape(x, (DIM // (8 * GROUPS), GROUPS, 4, 8, 4, 2, 2))
    x = gl.reshape(gl.permute(x, (2, 5, 3, 1, 0, 4, 6)), (64, DIM))
    return gl.convert_layout(x, sums_product(DIM, gl.num_warps()), assert_trivial=True)


@gluon.jit
def add_up(dx, j, p_sums):
    """Add block j of dx to the sums of a head."""
    DIM: gl.constexpr = dx.shape[1]
    SIZE: gl.constexpr = dx.shape[0] * DIM
    places = gl.arange(0, SIZE, sums_layout(DIM, gl.num_warps()))
    gl.atomic_add(p_sums + j * SIZE + places, in_a_row(dx), sem="relaxed")


@gluon.jit
def operand(x, j):
    """Block j of x, its address worked out in step j; x where it is in registers.

    The addresses of all parts of all operands, worked out once and kept, would take more registers
    than there are. So where there is one block, the compiler is told of a number that depends on j,
    and is 0.
    """
    if isinstance(x, gl.shared_memory_descriptor):
        if x.shape[0] > 1:
            i = j & (x.shape[0] - 1)
        else:
            i = gl.inline_asm_elementwise(LATER, "=r,r", [j], dtype=gl.int32, is_pure=True, pack=1)
        x = x.index(i)
    return x


@gluon.jit
def rows_of(blocks, j):
    """Block j of q or dy, (BLOCK, D)."""
    return operand(blocks, j).reshape([blocks.shape[3], blocks.shape[4]])


@gluon.jit
def allocate_buffers(tensors, BLOCKS: gl.constexpr):
    """Shared memory for blocks of q and of dy, and the barriers that say when they are loaded."""
    q_desc, dy_desc = tensors
    SHAPE: gl.constexpr = [BLOCKS, 1, 1, q_desc.block_type.shape[2], q_desc.block_type.shape[3]]
    q = gl.allocate_shared_memory(gl.bfloat16, SHAPE, q_desc.layout)
    dy = gl.allocate_shared_memory(gl.bfloat16, SHAPE, dy_desc.layout)
    # One barrier for both would have Triton put all warps in step between the copies.
    q_full = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], mbarrier.MBarrierLayout())
    dy_full = gl.allocate_shared_memory(gl.int64, [BLOCKS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BLOCKS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(dy_full.index(i), count=1)
    return q, dy, q_full, dy_full


@gluon.jit
def copy_pair(i, blocks, sample, head, tensors, buffers):
    """Start to copy block i of q and dy, if it exists, once all warps are here."""
    q_desc, dy_desc = tensors
    q, dy, q_full, dy_full = buffers
    slot, m_exists = i & (q.shape[0] - 1), i < blocks
    q_here, dy_here = q_full.index(slot), dy_full.index(slot)
    mbarrier.expect(q_here, q_desc.block_type.nbytes, pred=m_exists)
    mbarrier.expect(dy_here, dy_desc.block_type.nbytes, pred=m_exists)
    all_warps_here()
    place = [sample, head, i * q.shape[3], 0]
    copy_block(q_desc, place, q_here, q.index(slot), pred=m_exists)
    copy_block(dy_desc, place, dy_here, dy.index(slot), pred=m_exists)


@gluon.jit
def scores(j, k, v, buffers, SLOTS: gl.constexpr, SCORES: gl.constexpr):
    """s_j and t_j (keys, queries), left in flight."""
    q, dy, q_full, dy_full = buffers
    slot, phase = j & (q.shape[0] - 1), (j & SLOTS) // SLOTS
    mbarrier.wait(q_full.index(slot), phase)
    mbarrier.wait(dy_full.index(slot), phase)
    ROWS: gl.constexpr = k.shape[0]
    BLOCK: gl.constexpr = q.shape[3]
    none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    s = warpgroup_mma(k, rows_of(q, j).permute((1, 0)), none, use_acc=False, is_async=True)
    t = warpgroup_mma(v, rows_of(dy, j).permute((1, 0)), none, use_acc=False, is_async=True)
    return s, t


@gluon.jit
def weights(s, t, row_a, shift, row_b):
    """w and ds."""
    s = rounded(s)
    row_a = gl.to_tensor(row_a)
    w = scale_add(s, scale_add(s, row_a, row_b), -0.0)
    return w, scale_add(scale_add(rounded(t), 1.0, shift), scale_add(s, row_a + row_a, row_b), -0.0)


@gluon.jit
def step(
    j,
    blocks,
    sample,
    head,
    table_row,
    operands,
    dv,
    dk,
    p_sums,
    ds_at,
    tensors,
    here,
    free,
    coefficients,
    NORMALIZE: gl.constexpr,
    SLOTS: gl.constexpr,
    SCORES: gl.constexpr,
    LEFT: gl.constexpr,
):
    """dv and dk, block j being in `here`, block j - 1 in `free`; in flight where D = 64."""
    k, v, ks = operands
    q, dy, _, _ = here
    p_rows_a, p_shifts, row_a, row_b = coefficients
    BLOCK: gl.constexpr = q.shape[3]
    DIM: gl.constexpr = q.shape[4]
    if NORMALIZE:
        row_a = load_table(p_rows_a, table_row + j * BLOCK, BLOCK, SCORES)
    shift = load_table(p_shifts, table_row + j * BLOCK, BLOCK, SCORES)
    s, t = scores(j, operand(k, j), operand(v, j), here, SLOTS, SCORES)
    s, t = warpgroup_mma_wait(0, [s, t])
    w, ds = weights(s, t, row_a, shift, row_b)
    ds_at.index(0).store(ds)
    fence_async_shared()
    copy_pair(j - 1 + SLOTS, blocks, sample, head, tensors, free)
    none = gl.zeros([BLOCK, DIM], gl.float32, sums_product(DIM, gl.num_warps()))
    left = operand(ds_at, j).permute((1, 0))
    dx = warpgroup_mma(left, operand(ks, j), none, use_acc=False, is_async=True)
    w, ds = gl.convert_layout(w, LEFT), gl.convert_layout(ds, LEFT)
    if q.shape[0] == 1:  # each the faster order where it was timed
        dk = warpgroup_mma(ds, rows_of(q, j), dk, is_async=True)
        dv = warpgroup_mma(w, rows_of(dy, j), dv, is_async=True)
    else:
        dv = warpgroup_mma(w, rows_of(dy, j), dv, is_async=True)
        dk = warpgroup_mma(ds, rows_of(q, j), dk, is_async=True)
    add_up(warpgroup_mma_wait(2, [dx]), j, p_sums)
    if DIM > 64:
        dv, dk = warpgroup_mma_wait(0, [dv, dk])
        dv, dk = warpgroup_mma_init(dv), warpgroup_mma_init(dk)
    return dv, dk


@gluon.jit
def key_gradients(dk, p_k_rows, kn, scale, NORMALIZE: gl.constexpr):
    """Those of keys in rows, from those of what entered the products."""
    ROWS: gl.constexpr = dk.shape[0]
    DIM: gl.constexpr = dk.shape[1]
    LAYOUT: gl.constexpr = rows_layout(DIM, gl.num_warps())
    if NORMALIZE:
        k = gl.load(row_pointers(p_k_rows, kn, ROWS, DIM)).to(gl.float32)
        dk = gl.convert_layout(dk, LAYOUT)
        inverse = 1.0 / gl.maximum(gl.sqrt(gl.sum(k * k, axis=1)), NORM_EPS)
        along = gl.sum(dk * k, axis=1) * inverse * inverse
        dk = ((dk - along[:, None] * k) * inverse[:, None]).to(gl.bfloat16)
    else:
        dk = gl.convert_layout((dk * scale).to(gl.bfloat16), LAYOUT)
    return dk


@gluon.jit
def key_operands(k, v, scale, NORMALIZE: gl.constexpr, HELD: gl.constexpr):
    """k and v as left operands, in registers at D = 64, and k in shared memory once more.

    As in `direct_keys`, the factor of the keys, or the scale, is in k.
    """
    ROWS: gl.constexpr = k.shape[0]
    DIM: gl.constexpr = k.shape[1]
    if NORMALIZE:
        k *= (1.0 / gl.maximum(gl.sqrt(gl.sum(k * k, axis=1)), NORM_EPS))[:, None]
    else:
        k *= scale
    ks = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, DIM], operand_layout(2))
    ks.index(0).store(k.to(gl.bfloat16))
    if DIM == 64:
        operands = ks.index(0).load(HELD), gl.convert_layout(v, HELD), ks
    else:
        vs = gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, DIM], operand_layout(2))
        vs.index(0).store(v)
        operands = ks, vs, ks
    return operands


@gluon.jit(do_not_specialize=["heads"])
def hopper_backward(
    q_desc,
    p_k,
    p_v,
    p_temperature,
    p_rows_a,
    p_shifts,
    dy_desc,
    p_sum_dy,
    p_sums,
    p_dk,
    p_dv,
    heads,
    queries,
    keys,
    k_strides,
    v_strides,
    coefficients,
    DIM: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    SLOTS: gl.constexpr,
    APART: gl.constexpr,
    NORMALIZE: gl.constexpr,
):
    """dk and dv of a block of keys; what it adds to the gradients of queries is in the sums."""
    kb, kh, kn = k_strides
    vb, vh, vn = v_strides
    scale, inv_keys, a, b, c = coefficients
    W: gl.constexpr = gl.num_warps()
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, BLOCK, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, DIM, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    HELD: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    LAYOUT: gl.constexpr = rows_layout(DIM, W)
    BF16: gl.constexpr = gl.bfloat16

    first, i_bh = gl.program_id(0) * ROWS, gl.program_id(1)
    sample, head = i_bh // heads, i_bh % heads
    blocks = queries // BLOCK
    tensors, slots = (q_desc, dy_desc), ()
    for _ in gl.static_range(SLOTS if APART else 1):
        slots += (allocate_buffers(tensors, 1 if APART else SLOTS),)  # type: ignore[assignment]
    fence_async_shared()
    all_warps_here()
    for i in gl.static_range(SLOTS - 1):
        copy_pair(i, blocks, sample, head, tensors, slots[i % len(slots)])

    p_k_rows = p_k + sample.to(gl.int64) * kb + head.to(gl.int64) * kh + first.to(gl.int64) * kn
    p_v_rows = p_v + sample.to(gl.int64) * vb + head.to(gl.int64) * vh + first.to(gl.int64) * vn
    k = gl.load(row_pointers(p_k_rows, kn, ROWS, DIM)).to(gl.float32)
    v = gl.load(row_pointers(p_v_rows, vn, ROWS, DIM))
    operands = key_operands(k, v, scale, NORMALIZE, HELD)
    ds_at = (
        gl.allocate_shared_memory(BF16, [1, ROWS, BLOCK], operand_layout(2)),
        gl.allocate_shared_memory(BF16, [1, ROWS, BLOCK], operand_layout(2)),
    )
    fence_async_shared()
    all_warps_here()

    sums_at = p_sums + i_bh.to(gl.int64) * queries * DIM
    coefficients = p_rows_a, p_shifts, a, b
    dk = warpgroup_mma_init(gl.zeros([ROWS, DIM], gl.float32, OUT))
    dv = warpgroup_mma_init(gl.zeros([ROWS, DIM], gl.float32, OUT))
    PASS: gl.constexpr = SLOTS if APART else 2
    for j in range(0, blocks, PASS):
        for i in gl.static_range(PASS):
            dv, dk = step(
                j + i, blocks, sample, head, i_bh * queries, operands, dv, dk, sums_at,
                ds_at[i % 2], tensors, slots[i % len(slots)], slots[(i - 1) % len(slots)],
                coefficients, NORMALIZE, SLOTS, SCORES, LEFT,
            )  # fmt: skip
    dv, dk = warpgroup_mma_wait(0, [dv, dk])

    factor = inv_keys
    if NORMALIZE:
        factor = inv_keys * scale * gl.load(p_temperature + head)
    columns = gl.arange(0, DIM, gl.SliceLayout(0, OUT))
    sum_dy = c * inv_keys * gl.load(p_sum_dy + i_bh.to(gl.int64) * DIM + columns)
    dv = gl.convert_layout((factor * dv + sum_dy[None, :]).to(BF16), LAYOUT)
    row = i_bh.to(gl.int64) * keys + first
    gl.store(row_pointers(p_dv + row * DIM, DIM, ROWS, DIM), dv)
    dk = key_gradients(dk * factor, p_k_rows, kn, scale, NORMALIZE)
    gl.store(row_pointers(p_dk + row * DIM, DIM, ROWS, DIM), dk)


@gluon.jit(do_not_specialize=["heads"])
def query_gradients(
    p_sums,
    p_q,
    p_temperature,
    p_dq,
    p_dt,
    heads,
    queries,
    q_strides,
    scale,
    inv_keys,
    DIM: gl.constexpr,
    BLOCK: gl.constexpr,
    NORMALIZE: gl.constexpr,
):
    """dq of a block of queries from what was added up, and their part of the temperature's."""
    qb, qh, qn = q_strides
    W: gl.constexpr = gl.num_warps()
    LAYOUT: gl.constexpr = rows_layout(DIM, W)
    block, i_bh = gl.program_id(0), gl.program_id(1)
    first = block * BLOCK
    row = i_bh.to(gl.int64) * queries + first
    x = gl.load(p_sums + row * DIM + gl.arange(0, BLOCK * DIM, sums_layout(DIM, W)))
    if NORMALIZE:  # all that is read before any of it is waited for
        sample, head = (i_bh // heads).to(gl.int64), (i_bh % heads).to(gl.int64)
        p_q_rows = p_q + sample * qb + head * qh + first.to(gl.int64) * qn
        q = gl.load(row_pointers(p_q_rows, qn, BLOCK, DIM))
        factor = scale * gl.load(p_temperature + head)
    x = in_rows(x, DIM) * inv_keys
    if NORMALIZE:
        x, q = gl.convert_layout(x, LAYOUT), q.to(gl.float32)
        along = gl.sum(x * q, axis=1)
        partial = gl.sum(along, axis=0) * scale
        gl.store(p_dt + i_bh.to(gl.int64) * gl.num_programs(0) + block, partial)
        length = gl.maximum(gl.sqrt(gl.sum(q * q, axis=1)), NORM_EPS)
        x -= (along / (length * length))[:, None] * q
        x = (x * factor).to(gl.bfloat16)
    else:  # the scale is in the keys
        x = gl.convert_layout(x.to(gl.bfloat16), LAYOUT)
    gl.store(row_pointers(p_dq + row * DIM, DIM, BLOCK, DIM), x)


MAX_APART = 64
"""The widest heads that have registers for places in memory apart."""


def keys_launch(call: CallShape) -> Launch:
    """The launch of `hopper_backward`."""
    size = call.blocks("hopper_backward")
    coefficients = (call.scale, 1 / call.keys, call.a, call.b, call.c)
    numbers = (
        call.heads,
        call.queries,
        call.keys,
        call.k_stride[:3],
        call.v_stride[:3],
        coefficients,
    )
    constants = {
        "DIM": call.dim,
        "ROWS": size.rows,
        "BLOCK": size.block,
        "SLOTS": size.stages,
        "APART": call.dim <= MAX_APART and call.queries % (size.stages * size.block) == 0,
        "NORMALIZE": call.normalized,
        **size.options(),
    }
    shape = [call.batch, call.heads, call.queries, call.dim]
    _, _, dy_stride = call.rows(of_queries=True)
    descriptors = {
        0: described(block_descriptor(call.dtype, shape, list(call.q_stride), size.block)),
        6: described(block_descriptor(call.dtype, shape, list(dy_stride), size.block)),
    }
    grid = (call.keys // size.rows, call.batch_heads)
    return Launch(hopper_backward, grid, numbers, constants, descriptors)


def queries_launch(call: CallShape) -> Launch:
    """The launch of `query_gradients`."""
    size = call.blocks("hopper_backward")
    numbers = (call.heads, call.queries, call.q_stride[:3], call.scale, 1 / call.keys)
    constants = {
        "DIM": call.dim,
        "BLOCK": size.block,
        "NORMALIZE": call.normalized,
        **size.options(),
    }
    grid = (call.queries // size.block, call.batch_heads)
    return Launch(query_gradients, grid, numbers, constants)
