"""Sums over tokens: a state for every head, accumulated in chunks and then combined.

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

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import launch_of
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops.linear.triton.configs import padded
from saccade.ops.linear.triton.library import (
    RUNTIME_SIZES,
    add_columns,
    add_rows,
    exact,
    feature,
    half_norm,
    load_projection,
    load_rows,
    product,
    rounded,
    store_rows,
    store_state,
)
from saccade.ops.linear.triton.shapes import Call, HeadState, QueryRows, splits_of, state_dtype

__all__ = ["add_tokens", "run_state", "with_constant"]


@triton.jit
def add_tokens(
    state_sum,
    weight_sum,
    u_sum,
    peak,
    p_x,
    p_u,
    p_mask,
    p_pull,
    p_top,
    w,
    rest,
    features,
    start,
    last,
    factor,
    norm,
    steps,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The sums with BN more tokens, and y of these; features are formed as (BM, BN)."""
    xn, xd, un, ud = steps
    rows = start + tl.arange(0, BN)
    m_rows = rows < last
    if MASKED:
        m_rows = tl.load(p_mask + rows, mask=m_rows, other=0) != 0
    y = tl.load(p_pull + rows, mask=m_rows, other=0.0) if QUERY else m_rows.to(tl.float32)
    u = exact(load_rows(p_u, rows, m_rows, un, 0, CALL.E, CALL.EP, ud), CALL.OPERAND)  # (BN, EP)
    if CALL.MAP == "identity":
        pointers = p_x + rows.to(tl.int64)[None, :] * xn + features[:, None] * xd
        m_features = m_rows[None, :] & (features < CALL.M)[:, None]
        z = tl.load(pointers, mask=m_features, other=0.0).to(tl.float32)
    else:
        x = load_rows(p_x, rows, m_rows, xn, 0, CALL.D, CALL.DP, xd)  # (BN, DP)
        z = product(w, tl.trans(x), tl.zeros([BM, BN], tl.float32), CALL.OPERAND)
        if CALL.PARTS == 2:
            z = product(rest, tl.trans(x), z, CALL.OPERAND)
    if CALL.MAP != "favor_softmax":
        g = feature(z * factor, CALL.MAP, CALL.OPERAND)
    elif QUERY:
        top = tl.load(p_top + rows, mask=m_rows, other=0.0)
        g = tl.exp2(z * factor - top[None, :])
    else:
        shift = tl.where(m_rows, half_norm(x, norm), float("inf"))
        exponent = z * factor - shift[None, :]
        highest = tl.maximum(peak, tl.max(exponent, axis=1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        g = tl.exp2(exponent - finite[:, None])
        decay = tl.exp2(peak - finite)
        state_sum *= decay[:, None]
        weight_sum *= decay
        peak = highest
    weight_sum = add_rows(weight_sum, g, y)
    state_sum = materialize(product(rounded(g, CALL.OPERAND), u, state_sum, CALL.OPERAND))
    u_sum = materialize(add_columns(u_sum, u, CALL.OPERAND))
    return state_sum, weight_sum, u_sum, peak, y


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def accumulate(
    p_x,
    p_u,
    p_w,
    p_mask,
    p_top,
    p_pull,
    p_state_sum,
    p_weight_sum,
    p_peak,
    p_token_sums,
    heads,
    tokens,
    splits,
    chunk,
    factor,
    norm,
    x_strides,
    u_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    QUERY: tl.constexpr,
    MASKED: tl.constexpr,
):
    """T and t of one chunk of the tokens for one block of features; the first also gives R and r.

    Masked tokens have u = 0 and y = 0; for FAVOR+ they still enter the maximum of the exponents.
    """
    EP: tl.constexpr = CALL.EP
    xb, xh, xn, xd = x_strides
    ub, uh, un, ud = u_strides
    SUMS: tl.constexpr = 16 if CALL.OPERAND == "bf16" else 1
    blocks: tl.constexpr = tl.cdiv(CALL.M, BM)
    block = tl.program_id(0) % blocks
    slot = (tl.program_id(0) // blocks).to(tl.int64)
    i_bh = slot // splits
    first = (slot % splits).to(tl.int32) * chunk
    last = tl.minimum(first + chunk, tokens)
    p_x += head_offset(i_bh, heads, xb, xh)
    p_u += head_offset(i_bh, heads, ub, uh)
    if MASKED:
        p_mask += i_bh // heads * tokens
    if QUERY:
        p_pull += i_bh * tokens
        if CALL.MAP == "favor_softmax":
            p_top += i_bh * tokens
    features = block * BM + tl.arange(0, BM)
    w = None
    rest = None
    if CALL.MAP != "identity":
        w, rest = load_projection(p_w, block * BM, CALL.M, CALL.D, BM, CALL.DP, CALL.PARTS)
    state_sum = tl.zeros([BM, EP], tl.float32)
    weight_sum = tl.zeros([BM], tl.float32)
    u_sum = tl.zeros([SUMS, EP], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    y_sum = tl.zeros([BN], tl.float32)
    for start in range(first, last, BN):
        state_sum, weight_sum, u_sum, peak, y = add_tokens(
            state_sum, weight_sum, u_sum, peak, p_x, p_u, p_mask, p_pull, p_top, w, rest, features,
            start, last, factor, norm, (xn, xd, un, ud), CALL, BM, BN, QUERY, MASKED,
        )  # fmt: skip
        y_sum += y
    store_state(p_state_sum, slot, features, features < CALL.M, state_sum, CALL)
    tl.store(p_weight_sum + slot * CALL.M + features, weight_sum, mask=features < CALL.M)
    if CALL.MAP == "favor_softmax" and not QUERY:
        tl.store(p_peak + slot * CALL.M + features, peak, mask=features < CALL.M)
    if block == 0:
        cols = tl.arange(0, EP)
        tl.store(
            p_token_sums + slot * (CALL.E + 1) + cols, tl.max(u_sum, axis=0), mask=cols < CALL.E
        )
        tl.store(p_token_sums + slot * (CALL.E + 1) + CALL.E, tl.sum(y_sum, axis=0))


@triton.jit
def with_constant(state_sum, weight_sum, m_features, u_sum, y_sum, constant):
    """S and s from T and t, for the features inside."""
    state_sum = tl.where(m_features[:, None], state_sum + constant * u_sum[None, :], 0.0)
    return state_sum, tl.where(m_features, weight_sum + constant * y_sum, 0.0)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def assemble(
    p_state_sum,
    p_weight_sum,
    p_peak,
    p_token_sums,
    p_state,
    p_weight,
    p_p_rows,
    p_top,
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
    """S, s and b of one head, from its chunks."""
    i_bh = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, EP)
    u_sum = tl.zeros([EP], tl.float32)
    y_sum = 0.0
    top = float("-inf")
    for split in range(splits):
        slot = i_bh * splits + split
        u_sum += tl.load(p_token_sums + slot * (E + 1) + cols, mask=cols < E, other=0.0)
        y_sum += tl.load(p_token_sums + slot * (E + 1) + E)
        if PEAKED:
            for first in range(0, M, BM):
                features = first + tl.arange(0, BM)
                peak = tl.load(p_peak + slot * M + features, features < M, float("-inf"))
                top = tl.maximum(top, tl.max(peak, axis=0))
    if PEAKED:
        top = tl.where(top == float("-inf"), 0.0, top)
        tl.store(p_top + i_bh, top)
    base = tl.zeros([EP], tl.float32)
    base_weight = 0.0
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        m_features = features < M
        state_sum = tl.zeros([BM, EP], tl.float32)
        weight_sum = tl.zeros([BM], tl.float32)
        for split in range(splits):
            slot = i_bh * splits + split
            state_part = load_rows(p_state_sum + slot * M * E, features, m_features, E, 0, E, EP, 1)
            weight_part = tl.load(p_weight_sum + slot * M + features, mask=m_features, other=0.0)
            if PEAKED:
                peak = tl.load(p_peak + slot * M + features, m_features, float("-inf"))
                decay = tl.exp2(peak - top)
                state_part *= decay[:, None]
                weight_part *= decay
            state_sum += state_part
            weight_sum += weight_part
        state_sum, weight_sum = with_constant(
            state_sum, weight_sum, m_features, u_sum, y_sum, constant
        )
        base += tl.sum(state_sum, axis=0)
        base_weight += tl.sum(weight_sum, axis=0)
        state = rounded(state_sum, OPERAND)
        store_rows(p_state + i_bh * M * E, features, m_features, E, 0, E, EP, 1, state)
        tl.store(p_weight + i_bh * M + features, weight_sum, mask=m_features)
    base = constant * base + eps * u_sum
    tl.store(p_p_rows + i_bh * (E + 1) + cols, base, mask=cols < E)
    tl.store(p_p_rows + i_bh * (E + 1) + E, constant * base_weight + eps * y_sum)


def run_state(
    call: Call,
    x: Tensor,
    u: Tensor,
    *,
    constant: float,
    eps: float,
    key_mask: Tensor | None = None,
    queries: QueryRows | None = None,
) -> HeadState:
    """Sum over keys x with values u or, given `queries`, over queries x with their scaled u."""
    (batch, heads, length), m, e = x.shape[:3], call.num_features, call.width
    blocks = call.tiles("state")
    count, groups = batch * heads, triton.cdiv(m, blocks["BM"])
    splits = splits_of(count * groups, length, blocks, x.device)
    chunk = triton.cdiv(triton.cdiv(length, splits), blocks["BN"]) * blocks["BN"]
    peaked = call.feature_map == "favor_softmax" and queries is None
    new = x.new_empty
    state_sum = new(count, splits, m, e, dtype=torch.float32)
    weight_sum = new(count, splits, m, dtype=torch.float32)
    peak = new((count, splits, m) if peaked else 0, dtype=torch.float32)
    u_sum = new(count, splits, e + 1, dtype=torch.float32)
    top, pull = (None, None) if queries is None else (queries.top, queries.pull)
    launch = launch_of(
        accumulate, (count * splits * groups,),
        heads, length, splits, chunk, *call.numbers(), x.stride(), u.stride(),
        QUERY=queries is not None, MASKED=key_mask is not None, **blocks, CALL=call.constants(),
    )  # fmt: skip
    launch(x, u, call.weights, key_mask, top, pull, state_sum, weight_sum, peak, u_sum)
    summed = HeadState(
        new(batch, heads, m, e, dtype=state_dtype(call.dtype)),
        new(batch, heads, m, dtype=torch.float32),
        new(batch, heads, e + 1, dtype=torch.float32),
        new((batch, heads) if peaked else 0, dtype=torch.float32),
    )
    launch = launch_of(
        assemble, (count,), splits, constant, eps,
        M=m, E=e, BM=min(32, padded(m)), EP=padded(e), PEAKED=peaked, OPERAND=call.operand,
    )  # fmt: skip
    launch(state_sum, weight_sum, peak, u_sum, summed.state, summed.weight, summed.base, summed.top)
    return summed
