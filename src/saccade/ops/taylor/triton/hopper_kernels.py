"""The direct forward for Hopper, in Gluon: programs that stay, products that run on.

x, k, v, s, o and z are as in `direct_kernels`; w is w' there, b s + a s^2.

A program takes every n-th tile of ROWS queries, n programs being at once. The blocks of keys and
values that its tiles meet are one sequence, copied by TMA, and step g of it

    issues  s_{g+1} = x k_{g+1}^T  and  o += w_g v_g,
    starts to copy what step g + SLOTS - 2 wants,
    and forms w_{g+1} as soon as s_{g+1} is there, while w_g v_g runs on

where block g + 1 may be the next tile's first. So arithmetic and products overlap, and no tile but
the first waits for what it loads. At step g nobody reads blocks g - 1 of k and g - 2 of v any more,
whose place is taken: each warp has waited for its s_g, and so for w_{g-2} v_{g-2}, before all meet
in `copy_next`.

Wants bfloat16, D = E, no mask, whole tiles, an even number of blocks, SLOTS of them or more, and
SLOTS a power of two. Gluon changes its names between releases of Triton: those of 3.6 and 3.9 are
known, and whoever imports this is prepared for it to fail.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import MockTensor

from saccade.ops.taylor.triton.blocks import NORM_EPS
from saccade.ops.taylor.triton.scores import FUSED, PAIR

__all__ = ["block_descriptor", "hopper_forward"]

copy_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
all_warps_here = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def operand_layout(rank):
    """Rows of 64 numbers or more in shared memory, as the matrix unit takes them."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


def block_descriptor(dtype, shape, strides, rows):
    """What (1, 1, rows, D) are copied by, out of a (B, H, S, D) that is to be put in as `base`."""
    block = [1, 1, rows, shape[-1]]
    return TensorDescriptor(MockTensor(dtype), shape, strides, block, operand_layout(4))


@gluon.constexpr_function
def rows_layout(dim, warps):
    """Rows of `dim` numbers in registers, 16 bytes a thread."""
    across = dim // 8
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.constexpr_function
def table_layout(block, warps):
    """A block of a table (`table_place`): each thread has what its columns of a product want."""
    registers = [[1], [2], [4]] + [[32 << i] for i in range((block // 32).bit_length() - 1)]
    lanes, idle = [[8], [16], [0], [0], [0]], [[0]] * (warps.bit_length() - 1)
    return gl.DistributedLinearLayout(registers, lanes, idle, [], [block])


@gluon.jit
def line(x, a, b):
    """a x + b, a and b rounded to bfloat16."""
    return gl.inline_asm_elementwise(
        FUSED,
        "=r,r,r,r",
        [x, gl.to_tensor(a).to(gl.bfloat16), gl.to_tensor(b).to(gl.bfloat16)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def weights(s, curve, slope):
    """slope s + curve s^2 in bfloat16."""
    s = gl.inline_asm_elementwise(PAIR, "=r,r,r", [s], dtype=gl.bfloat16, is_pure=True, pack=2)
    return line(s, line(s, curve, slope), -0.0)


@gluon.jit
def eighths(w):
    """For each row the sums of every eighth of its columns."""
    for _ in gl.static_range(5):
        if w.shape[1] > 8:
            halves = gl.reshape(w, (w.shape[0], 2, w.shape[1] // 2))
            w, other = gl.split(gl.permute(halves, (0, 2, 1)))
            w = line(w, 1.0, other)
    return w.to(gl.float32)


@gluon.jit
def load_table(table_ptr, first, BLOCK: gl.constexpr, SCORES: gl.constexpr):
    """The numbers of a block of keys, as columns of their scores."""
    x = gl.load(table_ptr + (first + gl.arange(0, BLOCK, table_layout(BLOCK, gl.num_warps()))))
    x = gl.reshape(gl.permute(gl.reshape(x, (BLOCK // 32, 4, 4, 2)), (0, 2, 1, 3)), (BLOCK,))
    return gl.convert_layout(x, gl.SliceLayout(0, SCORES), assert_trivial=True)[None, :]


@gluon.jit
def row_pointers(base, stride, ROWS: gl.constexpr, DIM: gl.constexpr):
    """(ROWS, DIM) pointers from `base` on."""
    LAYOUT: gl.constexpr = rows_layout(DIM, gl.num_warps())
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, DIM, gl.SliceLayout(0, LAYOUT))
    return base + rows[:, None] * stride + cols[None, :]


@gluon.jit
def head_of(tile, tiles, per_head, heads):
    """(sample, head) of a tile, or of the last where there is none."""
    bh = gl.minimum(tile, tiles - 1) // per_head
    return bh // heads, bh % heads


@gluon.jit
def load_queries(
    q_ptr, tile, tiles, per_head, heads, qb, qh, qn, ROWS: gl.constexpr, DIM: gl.constexpr
):
    """The rows of a tile as they are, of the last one where there is none."""
    sample, head = head_of(tile, tiles, per_head, heads)
    first = gl.minimum(tile, tiles - 1) % per_head * ROWS
    base = q_ptr + sample.to(gl.int64) * qb + head.to(gl.int64) * qh + first.to(gl.int64) * qn
    return gl.load(row_pointers(base, qn, ROWS, DIM))


@gluon.jit
def scaled(x, temperature_ptr, head, scale, NORMALIZE: gl.constexpr):
    """alpha x of a tile's rows."""
    x = x.to(gl.float32)
    if NORMALIZE:
        factor = scale * gl.load(temperature_ptr + head)
        x *= (factor / gl.maximum(gl.sqrt(gl.sum(x * x, axis=1)), NORM_EPS))[:, None]
    else:
        x *= scale
    return x.to(gl.bfloat16)


@gluon.jit
def copy_next(i, exists, cursor, coming, tensors, buffers, keys):
    """Start to copy block i - 1 of v, where the cursor is, and block i of k, where it goes.

    The cursor is (sample, head, row); `coming` has sample and head of the tile after the cursor's.
    """
    k_desc, v_desc = tensors
    ks, vs, k_full, v_full = buffers
    slot = i & (ks.shape[0] - 1)
    k_here, v_here = k_full.index(slot), v_full.index(slot)
    mbarrier.expect(k_here, k_desc.block_type.nbytes, pred=exists)
    mbarrier.expect(v_here, v_desc.block_type.nbytes, pred=exists)
    all_warps_here()
    sample, head, row = cursor
    copy_block(v_desc, [sample, head, row, 0], v_here, vs.index(slot), pred=exists)
    row += ks.shape[3]
    ended = row == keys
    sample = gl.where(ended, coming[0], sample)
    head = gl.where(ended, coming[1], head)
    row = gl.where(ended, 0, row)
    copy_block(k_desc, [sample, head, row, 0], k_here, ks.index(slot), pred=exists)
    return sample, head, row


@gluon.jit
def start_scores(x, k, SCORES: gl.constexpr):
    """x k^T, left in flight; k is (1, 1, BLOCK, D) in shared memory."""
    ROWS: gl.constexpr = x.shape[0]
    BLOCK: gl.constexpr = k.shape[2]
    none = gl.zeros([ROWS, BLOCK], gl.float32, SCORES)
    k = k.reshape([BLOCK, k.shape[3]]).permute((1, 0))
    return warpgroup_mma(x, k, none, use_acc=False, is_async=True)


@gluon.jit
def coefficients_of(table_row, coefficients, NORMALIZE: gl.constexpr, SCORES: gl.constexpr):
    """Those of s^2 and s for a block of keys."""
    curves_ptr, slopes_ptr, a, b = coefficients
    if NORMALIZE:
        a = load_table(curves_ptr, table_row, SCORES.instr_shape[1], SCORES)
        b = load_table(slopes_ptr, table_row, SCORES.instr_shape[1], SCORES)
    return a, b


@gluon.jit
def step(
    g, last, x, w, acc, cursor, coming, table_row, tensors, buffers, keys, coefficients,
    NORMALIZE: gl.constexpr, SCORES: gl.constexpr,
):  # fmt: skip
    """Issue s_{g+1} and w_g v_g; w_{g+1}, o, the sums of w_{g+1}, and where the cursor went."""
    ks, vs, k_full, v_full = buffers
    SLOTS: gl.constexpr = ks.shape[0]
    slot, phase = (g + 1) & (SLOTS - 1), ((g + 1) & SLOTS) // SLOTS
    curve, slope = coefficients_of(table_row, coefficients, NORMALIZE, SCORES)
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    s = start_scores(x, ks.index(slot), SCORES)
    acc = warpgroup_mma(w, vs.index(slot).reshape([vs.shape[3], vs.shape[4]]), acc, is_async=True)
    i = g + SLOTS - 1
    cursor = copy_next(i, i <= last, cursor, coming, tensors, buffers, keys)
    following = weights(warpgroup_mma_wait(1, [s]), curve, slope)
    return gl.convert_layout(following, w.type.layout), acc, eighths(following), cursor


@gluon.jit(do_not_specialize=["heads", "tiles"])
def hopper_forward(
    q_ptr, k_desc, v_desc, temperature_ptr, curves_ptr, slopes_ptr, sum_v_ptr, out_ptr, total_ptr,
    heads, queries, keys, tiles, qb, qh, qn, scale, over, a, b, c, floor, lift,
    DIM: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr, SLOTS: gl.constexpr,
    NORMALIZE: gl.constexpr,
):  # fmt: skip
    """o and z of tiles of queries."""
    W: gl.constexpr = gl.num_warps()
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, BLOCK, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, DIM, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    SUMS: gl.constexpr = gl.SliceLayout(1, OUT)

    begin, programs = gl.program_id(0), gl.num_programs(0)
    blocks, per_head = keys // BLOCK, queries // ROWS
    last = (tiles - begin + programs - 1) // programs * blocks  # there is no k of that number
    ks = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, BLOCK, DIM], k_desc.layout)
    vs = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, 1, 1, BLOCK, DIM], v_desc.layout)
    xs = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, DIM], operand_layout(2))
    # One barrier for both would have Triton put all warps in step between the copies.
    k_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
    fence_async_shared()
    all_warps_here()
    tensors, buffers = (k_desc, v_desc), (ks, vs, k_full, v_full)
    coefficients = curves_ptr, slopes_ptr, a, b

    # Slot i takes block i of k and i - 1 of v, and so on round.
    sample, head = head_of(begin, tiles, per_head, heads)
    coming = head_of(begin + programs, tiles, per_head, heads)
    mbarrier.expect(k_full.index(0), k_desc.block_type.nbytes)
    mbarrier.arrive(v_full.index(0), count=1)  # there is no block -1
    all_warps_here()
    copy_block(k_desc, [sample, head, 0, 0], k_full.index(0), ks.index(0))
    cursor = sample, head, begin * 0
    for i in gl.static_range(1, SLOTS - 1):
        cursor = copy_next(i, True, cursor, coming, tensors, buffers, keys)
    # x of this tile and of the next.
    for i in gl.static_range(2):
        tile = begin + i * programs
        x = load_queries(q_ptr, tile, tiles, per_head, heads, qb, qh, qn, ROWS, DIM)
        head = head_of(tile, tiles, per_head, heads)[1]
        xs.index(i).store(scaled(x, temperature_ptr, head, scale, NORMALIZE))
    fence_async_shared()

    table_row = begin // per_head * keys
    curve, slope = coefficients_of(table_row, coefficients, NORMALIZE, SCORES)
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma_wait(0, [start_scores(xs.index(0), ks.index(0), SCORES)])
    w = weights(s, curve, slope)
    sums = eighths(w)
    w = gl.convert_layout(w, OPERAND)

    g, mine = begin * 0, begin * 0
    for tile in range(begin, tiles, programs):
        acc = warpgroup_mma_init(gl.zeros([ROWS, DIM], gl.float32, OUT))
        coming = head_of(tile + programs, tiles, per_head, heads)
        # blocks - 1 steps to blocks of this tile, two at a time but for the last of them.
        for _ in range(0, blocks - 2, 2):
            for _ in gl.static_range(2):
                table_row += BLOCK
                w, acc, part, cursor = step(
                    g, last, xs.index(mine), w, acc, cursor, coming, table_row,
                    tensors, buffers, keys, coefficients, NORMALIZE, SCORES,
                )  # fmt: skip
                sums += part
                g += 1
        w, acc, part, cursor = step(
            g, last, xs.index(mine), w, acc, cursor, coming, table_row + BLOCK,
            tensors, buffers, keys, coefficients, NORMALIZE, SCORES,
        )  # fmt: skip
        sums += part
        # And one to the first block of the next.
        table_row = gl.minimum(tile + programs, tiles - 1) // per_head * keys
        w, acc, part, cursor = step(
            g + 1, last, xs.index(1 - mine), w, acc, cursor, coming, table_row,
            tensors, buffers, keys, coefficients, NORMALIZE, SCORES,
        )  # fmt: skip
        g += 2
        after = tile + 2 * programs
        x = load_queries(q_ptr, after, tiles, per_head, heads, qb, qh, qn, ROWS, DIM)
        o = warpgroup_mma_wait(0, [acc])
        z = gl.maximum(gl.convert_layout(gl.sum(sums, axis=1), SUMS) * over + c, floor)
        z = gl.where(z > 0, z, 1.0)
        sums = part
        bh = (tile // per_head).to(gl.int64)
        row = bh * queries + tile % per_head * ROWS
        constant = c * gl.load(sum_v_ptr + bh * DIM + gl.arange(0, DIM, gl.SliceLayout(0, OUT)))
        o = (o + constant[None, :]) * (lift * over / z)[:, None]
        o = gl.convert_layout(o.to(gl.bfloat16), rows_layout(DIM, W))
        gl.store(row_pointers(out_ptr + row * DIM, DIM, ROWS, DIM), o)
        gl.store(total_ptr + row + gl.arange(0, ROWS, SUMS), z)
        head = head_of(after, tiles, per_head, heads)[1]
        xs.index(mine).store(scaled(x, temperature_ptr, head, scale, NORMALIZE))
        fence_async_shared()
        mine = 1 - mine
