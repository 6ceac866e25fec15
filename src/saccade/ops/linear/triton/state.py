"""Sums over tokens: a state for every head, accumulated in pieces and then put together.

    T = sum_n g_n u_n^T,   t = sum_n g_n y_n,   R = sum_n u_n,   r = sum_n y_n

over keys (u = v, y = 1, both 0 where masked) or, backwards, over queries (u the gradient of the
output o over the denominator, y = -u.o). With the constant c of the features g + c and the
constant eps of the weights, `assemble` makes of them

    S = T + c R,   s = t + c r,   b = c sum_m S_m + eps R,   c sum_m s_m + eps r

which is the state of the forward pass from the one and its gradient from the other.
FAVOR+ features of keys are taken relative to the largest exponent of their row so far, as in a
softmax that is computed online: no pass over the keys is spent on maxima.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.linear.triton.blocks import (
    RUNTIME_SIZES,
    add_columns,
    add_rows,
    exact,
    feature,
    half_norm,
    head_offset,
    load_projection,
    load_rows,
    product,
    rounded,
    store_rows,
)

__all__ = ["accumulate", "add_tokens", "assemble", "with_constant"]


@triton.jit
def add_tokens(
    wide, thin, plain, peak, x_ptr, u_ptr, mask_ptr, pull_ptr, top_ptr, w, rest, features,
    start, last, factor, norm, xn, xd, un, ud,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, QUERY: tl.constexpr,
    MASKED: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """The sums with BN more tokens, and y of these; features are formed as (BM, BN)."""
    rows = start + tl.arange(0, BN)
    keep = rows < last
    if MASKED:
        keep = tl.load(mask_ptr + rows, mask=keep, other=0) != 0
    y = tl.load(pull_ptr + rows, mask=keep, other=0.0) if QUERY else keep.to(tl.float32)
    u = exact(load_rows(u_ptr, rows, keep, un, 0, E, EP, ud), OPERAND)
    if MAP == "identity":
        pointers = x_ptr + rows.to(tl.int64)[None, :] * xn + features[:, None] * xd
        inside = keep[None, :] & (features < M)[:, None]
        z = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    else:
        x = load_rows(x_ptr, rows, keep, xn, 0, D, DP, xd)
        z = product(w, tl.trans(x), tl.zeros([BM, BN], tl.float32), OPERAND)
        if PARTS == 2:
            z = product(rest, tl.trans(x), z, OPERAND)
    if MAP != "favor_softmax":
        g = feature(z * factor, MAP, OPERAND)
    elif QUERY:
        top = tl.load(top_ptr + rows, mask=keep, other=0.0)
        g = tl.exp2(z * factor - top[None, :])
    else:
        shift = tl.where(keep, half_norm(x, norm), float("inf"))
        exponent = z * factor - shift[None, :]
        highest = tl.maximum(peak, tl.max(exponent, axis=1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        g = tl.exp2(exponent - finite[:, None])
        fade = tl.exp2(peak - finite)
        wide *= fade[:, None]
        thin *= fade
        peak = highest
    thin = add_rows(thin, g, y)
    wide = materialize(product(rounded(g, OPERAND), u, wide, OPERAND))
    plain = materialize(add_columns(plain, u, OPERAND))
    return wide, thin, plain, peak, y


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def accumulate(
    x_ptr, u_ptr, w_ptr, mask_ptr, top_ptr, pull_ptr, wide_ptr, narrow_ptr, peak_ptr, plain_ptr,
    heads, tokens, splits, chunk, factor, norm, xb, xh, xn, xd, ub, uh, un, ud,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, QUERY: tl.constexpr,
    MASKED: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """T and t of one piece of the tokens for one block of features; the first also gives R and r.

    Tokens that do not count have u = 0 and y = 0, and only for FAVOR+ a say in their features.
    """
    SUMS: tl.constexpr = 16 if OPERAND == "bf16" else 1
    blocks: tl.constexpr = tl.cdiv(M, BM)
    block = tl.program_id(0) % blocks
    slot = (tl.program_id(0) // blocks).to(tl.int64)
    bh = slot // splits
    first = (slot % splits).to(tl.int32) * chunk
    last = tl.minimum(first + chunk, tokens)
    x_ptr += head_offset(bh, heads, xb, xh)
    u_ptr += head_offset(bh, heads, ub, uh)
    if MASKED:
        mask_ptr += bh // heads * tokens
    if QUERY:
        pull_ptr += bh * tokens
        if MAP == "favor_softmax":
            top_ptr += bh * tokens
    features = block * BM + tl.arange(0, BM)
    w = None
    rest = None
    if MAP != "identity":
        w, rest = load_projection(w_ptr, block * BM, M, D, BM, DP, PARTS)
    wide = tl.zeros([BM, EP], tl.float32)
    thin = tl.zeros([BM], tl.float32)
    plain = tl.zeros([SUMS, EP], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    tally = tl.zeros([BN], tl.float32)
    for start in range(first, last, BN):
        wide, thin, plain, peak, y = add_tokens(
            wide, thin, plain, peak, x_ptr, u_ptr, mask_ptr, pull_ptr, top_ptr, w, rest, features,
            start, last, factor, norm, xn, xd, un, ud,
            M, D, E, BM, BN, DP, EP, MAP, QUERY, MASKED, PARTS, OPERAND,
        )  # fmt: skip
        tally += y
    store_rows(wide_ptr + slot * M * E, features, features < M, E, 0, E, EP, 1, wide)
    tl.store(narrow_ptr + slot * M + features, thin, mask=features < M)
    if MAP == "favor_softmax" and not QUERY:
        tl.store(peak_ptr + slot * M + features, peak, mask=features < M)
    if block == 0:
        cols = tl.arange(0, EP)
        tl.store(plain_ptr + slot * (E + 1) + cols, tl.max(plain, axis=0), mask=cols < E)
        tl.store(plain_ptr + slot * (E + 1) + E, tl.sum(tally, axis=0))


@triton.jit
def with_constant(wide, narrow, inside, wide_sum, narrow_sum, constant):
    """S and s from T and t, for the features inside."""
    wide = tl.where(inside[:, None], wide + constant * wide_sum[None, :], 0.0)
    return wide, tl.where(inside, narrow + constant * narrow_sum, 0.0)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def assemble(
    wide_ptr, narrow_ptr, peak_ptr, plain_ptr, state_ptr, weight_ptr, base_ptr, top_ptr,
    splits, constant, eps,
    M: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, EP: tl.constexpr,
    PEAKED: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """S, s and b of one head, from its pieces."""
    bh = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, EP)
    wide_sum = tl.zeros([EP], tl.float32)
    narrow_sum = 0.0
    top = float("-inf")
    for split in range(splits):
        slot = bh * splits + split
        wide_sum += tl.load(plain_ptr + slot * (E + 1) + cols, mask=cols < E, other=0.0)
        narrow_sum += tl.load(plain_ptr + slot * (E + 1) + E)
        if PEAKED:
            for first in range(0, M, BM):
                features = first + tl.arange(0, BM)
                peak = tl.load(peak_ptr + slot * M + features, features < M, float("-inf"))
                top = tl.maximum(top, tl.max(peak, axis=0))
    if PEAKED:
        top = tl.where(top == float("-inf"), 0.0, top)
        tl.store(top_ptr + bh, top)
    base = tl.zeros([EP], tl.float32)
    base_weight = 0.0
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        wide = tl.zeros([BM, EP], tl.float32)
        narrow = tl.zeros([BM], tl.float32)
        for split in range(splits):
            slot = bh * splits + split
            part = load_rows(wide_ptr + slot * M * E, features, inside, E, 0, E, EP, 1)
            thin = tl.load(narrow_ptr + slot * M + features, mask=inside, other=0.0)
            if PEAKED:
                peak = tl.load(peak_ptr + slot * M + features, inside, float("-inf"))
                fade = tl.exp2(peak - top)
                part *= fade[:, None]
                thin *= fade
            wide += part
            narrow += thin
        wide, narrow = with_constant(wide, narrow, inside, wide_sum, narrow_sum, constant)
        base += tl.sum(wide, axis=0)
        base_weight += tl.sum(narrow, axis=0)
        state = rounded(wide, OPERAND)
        store_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1, state)
        tl.store(weight_ptr + bh * M + features, narrow, mask=inside)
    base = constant * base + eps * wide_sum
    tl.store(base_ptr + bh * (E + 1) + cols, base, mask=cols < E)
    tl.store(base_ptr + bh * (E + 1) + E, constant * base_weight + eps * narrow_sum)
