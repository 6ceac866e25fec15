"""Sums over tokens: a state for every head, accumulated in pieces and then put together.

    T = sum_n r_n g_n u_n^T,   t = sum_n r_n g_n y_n,   R = sum_n r_n u_n,   r = sum_n r_n y_n

over keys (u = v, y = 1, r = 1 or 0 where masked) or, backwards, over queries (u the gradient of the
output o, y = -u.o, r one over the denominator). With the constant c of the features g + c and
the constant eps of the weights, `assemble` makes of them

    S = T + c R,   s = t + c r,   b = c sum_m S_m + eps R,   c sum_m s_m + eps r

which is the state of the forward pass from the one and its gradient from the other.
FAVOR+ features of keys are taken relative to the largest exponent of their row so far, as in a
softmax that is computed online: no pass over the keys is spent on maxima.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.linear.triton.blocks import (
    RUNTIME_SIZES,
    exact,
    feature,
    half_norm,
    head_offset,
    load_rows,
    product,
    rounded,
    store_rows,
)

__all__ = ["accumulate", "assemble"]


@triton.jit
def _token_factors(
    rows,
    last,
    mask_ptr,
    total_ptr,
    pull_ptr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Which rows count, and their r and y."""
    keep = rows < last
    if MASKED:
        keep = tl.load(mask_ptr + rows, mask=keep, other=0) != 0
    if QUERY:
        r = tl.where(keep, 1.0 / tl.load(total_ptr + rows, mask=keep, other=1.0), 0.0)
        y = tl.load(pull_ptr + rows, mask=keep, other=0.0)
    else:
        r = keep.to(tl.float32)
        y = r
    return keep, r, y


@triton.jit
def _sum_plain(
    u_ptr,
    mask_ptr,
    total_ptr,
    pull_ptr,
    plain_ptr,
    first,
    last,
    un,
    ud,
    E: tl.constexpr,
    EP: tl.constexpr,
    BN: tl.constexpr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """R and r of one piece."""
    wide = tl.zeros([BN, EP], tl.float32)
    narrow = tl.zeros([BN], tl.float32)
    for start in range(first, last, BN):
        rows = start + tl.arange(0, BN)
        keep, r, y = _token_factors(rows, last, mask_ptr, total_ptr, pull_ptr, QUERY, MASKED)
        u = load_rows(u_ptr, rows, keep, un, 0, E, EP, ud).to(tl.float32)
        wide += u * r[:, None]
        narrow += y * r
    cols = tl.arange(0, EP)
    tl.store(plain_ptr + cols, tl.sum(wide, axis=0), mask=cols < E)
    tl.store(plain_ptr + E, tl.sum(narrow, axis=0))


@triton.jit
def _sum_features(
    x_ptr,
    u_ptr,
    w_ptr,
    mask_ptr,
    total_ptr,
    top_ptr,
    pull_ptr,
    wide_ptr,
    narrow_ptr,
    peak_ptr,
    block,
    first,
    last,
    factor,
    norm,
    xn,
    xd,
    un,
    ud,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    MAP: tl.constexpr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """T and t of one piece, for one block of features; features are formed as (BM, BN)."""
    features = block * BM + tl.arange(0, BM)
    if MAP != "identity":
        w = load_rows(w_ptr, features, features < M, D, 0, D, DP, 1)
    if PARTS == 2:
        rest = load_rows(w_ptr + M * D, features, features < M, D, 0, D, DP, 1)
    wide = tl.zeros([BM, EP], tl.float32)
    narrow = tl.zeros([BM], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    for start in range(first, last, BN):
        rows = start + tl.arange(0, BN)
        keep, r, y = _token_factors(rows, last, mask_ptr, total_ptr, pull_ptr, QUERY, MASKED)
        u = load_rows(u_ptr, rows, keep, un, 0, E, EP, ud)
        if MAP == "identity":
            pointers = x_ptr + rows.to(tl.int64)[None, :] * xn + features[:, None] * xd
            inside = keep[None, :] & (features < M)[:, None]
            z = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
        else:
            x = load_rows(x_ptr, rows, keep, xn, 0, D, DP, xd)
            z = product(w, tl.trans(x), tl.zeros([BM, BN], tl.float32), OPERAND)
            if PARTS == 2:
                z = product(rest, tl.trans(x), z, OPERAND)
        if MAP == "favor_softmax":
            shift = half_norm(x, norm)
            if QUERY:
                shift += tl.load(top_ptr + rows, mask=keep, other=0.0) - tl.log2(r)
            shift = tl.where(keep, shift, float("inf"))
            exponent = z * factor - shift[None, :]
            if QUERY:
                g = tl.exp2(exponent)
            else:
                highest = tl.maximum(peak, tl.max(exponent, axis=1))
                finite = tl.where(highest == float("-inf"), 0.0, highest)
                g = tl.exp2(exponent - finite[:, None])
                fade = tl.exp2(peak - finite)
                wide *= fade[:, None]
                narrow *= fade
                peak = highest
        else:
            g = feature(z * factor, MAP) * r[None, :]
        g = rounded(g, OPERAND)
        wide = product(g, exact(u, OPERAND), wide, OPERAND)
        narrow += tl.sum(g.to(tl.float32) * y[None, :], axis=1)
    store_rows(wide_ptr, features, features < M, E, 0, E, EP, 1, wide)
    tl.store(narrow_ptr + features, narrow, mask=features < M)
    if MAP == "favor_softmax" and not QUERY:
        tl.store(peak_ptr + features, peak, mask=features < M)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def accumulate(
    x_ptr,
    u_ptr,
    w_ptr,
    mask_ptr,
    total_ptr,
    top_ptr,
    pull_ptr,
    wide_ptr,
    narrow_ptr,
    peak_ptr,
    plain_ptr,
    heads,
    tokens,
    splits,
    chunk,
    factor,
    norm,
    xb,
    xh,
    xn,
    xd,
    ub,
    uh,
    un,
    ud,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    MAP: tl.constexpr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """One piece of the tokens of a head: a block of features or, in the last program, R and r."""
    blocks = tl.cdiv(M, BM)
    block = tl.program_id(0) % (blocks + 1)
    slot = (tl.program_id(0) // (blocks + 1)).to(tl.int64)
    bh = slot // splits
    first = (slot % splits).to(tl.int32) * chunk
    last = tl.minimum(first + chunk, tokens)
    u_ptr += head_offset(bh, heads, ub, uh)
    if MASKED:
        mask_ptr += bh // heads * tokens
    if QUERY:
        total_ptr += bh * tokens
        pull_ptr += bh * tokens
        if MAP == "favor_softmax":
            top_ptr += bh * tokens
    elif MAP == "favor_softmax":
        peak_ptr += slot * M
    if block < blocks:
        _sum_features(
            x_ptr + head_offset(bh, heads, xb, xh),
            u_ptr,
            w_ptr,
            mask_ptr,
            total_ptr,
            top_ptr,
            pull_ptr,
            wide_ptr + slot * M * E,
            narrow_ptr + slot * M,
            peak_ptr,
            block,
            first,
            last,
            factor,
            norm,
            xn,
            xd,
            un,
            ud,
            M,
            D,
            E,
            BM,
            BN,
            DP,
            EP,
            MAP,
            QUERY,
            MASKED,
            PARTS,
            OPERAND,
        )
    else:
        _sum_plain(
            u_ptr,
            mask_ptr,
            total_ptr,
            pull_ptr,
            plain_ptr + slot * (E + 1),
            first,
            last,
            un,
            ud,
            E,
            EP,
            BN,
            QUERY,
            MASKED,
        )


@triton.jit(do_not_specialize=["splits"])
def assemble(
    wide_ptr,
    narrow_ptr,
    peak_ptr,
    plain_ptr,
    state_ptr,
    weight_ptr,
    base_ptr,
    top_ptr,
    splits,
    constant,
    eps,
    M: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    EP: tl.constexpr,
    PEAKED: tl.constexpr,
    OPERAND: tl.constexpr,
):
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
        wide = tl.where(inside[:, None], wide + constant * wide_sum[None, :], 0.0)
        narrow = tl.where(inside, narrow + constant * narrow_sum, 0.0)
        base += tl.sum(wide, axis=0)
        base_weight += tl.sum(narrow, axis=0)
        state = rounded(wide, OPERAND)
        store_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1, state)
        tl.store(weight_ptr + bh * M + features, narrow, mask=inside)
    base = constant * base + eps * wide_sum
    tl.store(base_ptr + bh * (E + 1) + cols, base, mask=cols < E)
    tl.store(base_ptr + bh * (E + 1) + E, constant * base_weight + eps * narrow_sum)
