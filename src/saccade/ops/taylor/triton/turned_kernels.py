"""The state from keys that were turned: what a thread of a product wants of them lies together.

A product leaves a thread with tokens 2 t, 2 t + 1 of every eight, of each feature. Of each 32,
turned rows keep side by side, column by column, those that one thread wants; alpha is in them.
`moments` writes them on its way, so that they cost no pass of their own, and features are formed of
them as they come out of memory.

    turned rows    [head][tokens / 32][D][32 tokens]
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.taylor.triton.blocks import head_offset, product
from saccade.ops.taylor.triton.efficient_kernels import tile_pair

__all__ = ["accumulate_turned", "store_turned"]


@triton.jit
def store_turned(place, x, BLOCK: tl.constexpr):
    """Write BLOCK rows of some shape, one after the other, as turned rows."""
    size: tl.constexpr = x.shape[0] * x.shape[1]
    x = tl.permute(tl.reshape(x, (BLOCK // 32, 4, 4, 2, size // BLOCK)), (0, 4, 2, 1, 3))
    at = tl.arange(0, size // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(place + at, tl.reshape(x, (size // 32, 32)).to(place.dtype.element_ty))


@triton.jit
def _load_tile(place, D: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """(16, BLOCK): a tile of turned rows."""
    blocks, inner = tl.arange(0, BLOCK // 32), tl.arange(0, 512)
    x = tl.load(place + blocks[:, None] * (32 * D) + inner[None, :]).to(DTYPE)
    x = tl.permute(tl.reshape(x, (BLOCK // 32, 16, 4, 4, 2)), (1, 0, 3, 2, 4))
    return tl.reshape(x, (16, BLOCK))


@triton.jit(do_not_specialize=["before", "count"])
def accumulate_turned(
    x_ptr, w_ptr, state_ptr, heads, tokens, per_split, wb, wh, wn, wd, value, before, count,
    TILES: tl.constexpr, PAIRS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S = sum (x (x) x) w^T for one tile pair, as `accumulate`, where all blocks are whole."""
    program = tl.program_id(0)
    split, pair = program // count, before + program % count
    bh = pair // PAIRS
    m, n = tile_pair(pair % PAIRS, TILES)
    wide, local = tl.arange(0, E), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + (bh.to(tl.int64) * tokens + first) * D
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    acc = tl.zeros([256, E], tl.float32)
    for _ in range(first, last, BLOCK):
        w = tl.load(w_base + local[:, None] * wn + wide[None, :] * wd).to(DTYPE)
        x_m = _load_tile(x_base + m * 512, D, BLOCK, DTYPE)
        x_n = _load_tile(x_base + n * 512, D, BLOCK, DTYPE)
        phi = tl.reshape(x_m[:, None, :] * x_n[None, :, :], (256, BLOCK))
        acc = materialize(product(phi, w, acc, PRECISION))
        x_base += BLOCK * D
        w_base += BLOCK * wn
    acc *= tl.where(m == n, value, 2 * value)  # off-diagonal pairs count twice
    place = state_ptr + program.to(tl.int64) * 256 * E
    place += tl.arange(0, 256)[:, None] * E + wide[None, :]
    tl.store(place, acc.to(state_ptr.dtype.element_ty))
