"""Whole heads: one program takes a head from its keys to its outputs, or back.

The same sums and steps as in `state` and `tokens`, with all features at once. States and sums stay
on the chip, nothing is summed in pieces, and the features of a query are formed once for both uses
that the backward pass has for them. For many heads with few features.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.linear.triton.blocks import (
    RUNTIME_SIZES,
    add_outer,
    exact,
    feature,
    head_offset,
    load_projection,
    load_rows,
    product,
    project,
    rounded,
    slope,
    store_rows,
)
from saccade.ops.linear.triton.state import add_tokens, with_constant
from saccade.ops.linear.triton.tokens import (
    add_features,
    add_key_gradients,
    divided,
    input_gradient,
    key_shift,
    map_input,
    scaled_gradient,
)

__all__ = ["head_backward", "head_forward"]


@triton.jit
def _whole_state(wide, thin, plain, count, inside, constant, eps):
    """S, s, b and b' of the whole head from its sums."""
    wide_sum = tl.max(plain, axis=0)
    wide, narrow = with_constant(wide, thin, inside, wide_sum, count, constant)
    base = constant * tl.sum(wide, axis=0) + eps * wide_sum
    return wide, narrow, base, constant * tl.sum(narrow, axis=0) + eps * count


@triton.jit
def _mix_tokens(
    q_ptr, out_ptr, total_ptr, top_ptr, w, rest, state, weight, base, base_weight, inside,
    start, last, factor, qn, qd, on,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    PADDED: tl.constexpr, MAP: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Outputs, denominators and largest exponents of BN queries."""
    rows = start + tl.arange(0, BN)
    keep = rows < last
    x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
    z = project(x, w, rest, PARTS, OPERAND)
    acc = tl.zeros([BN, EP], tl.float32)
    total = tl.zeros([BN], tl.float32)
    top = tl.full([BN], float("-inf"), tl.float32)
    acc, total, top = add_features(
        acc, total, top, z, state, weight, inside, factor, PADDED, MAP, OPERAND
    )
    out, z = divided(acc, total, base, base_weight)
    store_rows(out_ptr, rows, keep, on, 0, E, EP, 1, out)
    tl.store(total_ptr + rows, z, mask=keep)
    if MAP == "favor_softmax":
        tl.store(top_ptr + rows, top, mask=keep)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def head_forward(
    q_ptr, k_ptr, v_ptr, w_ptr, mask_ptr, state_ptr, weight_ptr, key_top_ptr, out_ptr, total_ptr,
    top_ptr, heads, queries, keys, factor, norm, constant, eps,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, ob, oh, on,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """The state of one head and its outputs."""
    SUMS: tl.constexpr = 16 if OPERAND == "bf16" else 1
    bh = tl.program_id(0).to(tl.int64)
    q_ptr += head_offset(bh, heads, qb, qh)
    k_ptr += head_offset(bh, heads, kb, kh)
    v_ptr += head_offset(bh, heads, vb, vh)
    out_ptr += head_offset(bh, heads, ob, oh)
    total_ptr += bh * queries
    if MAP == "favor_softmax":
        top_ptr += bh * queries
    if MASKED:
        mask_ptr += bh // heads * keys
    features = tl.arange(0, BM)
    inside = features < M
    w, rest = load_projection(w_ptr, 0, M, D, BM, DP, PARTS)
    wide = tl.zeros([BM, EP], tl.float32)
    thin = tl.zeros([BM], tl.float32)
    plain = tl.zeros([SUMS, EP], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    tally = tl.zeros([BN], tl.float32)
    for start in range(0, keys, BN):
        wide, thin, plain, peak, y = add_tokens(
            wide, thin, plain, peak, k_ptr, v_ptr, mask_ptr, None, None, w, rest, features,
            start, keys, factor, norm, kn, kd, vn, vd,
            M, D, E, BM, BN, DP, EP, MAP, False, MASKED, PARTS, OPERAND,
        )  # fmt: skip
        tally += y
    count = tl.sum(tally, axis=0)
    if MAP == "favor_softmax":
        key_top = tl.max(tl.where(inside, peak, float("-inf")), axis=0)
        key_top = tl.where(key_top == float("-inf"), 0.0, key_top)
        tl.store(key_top_ptr + bh, key_top)
        fade = tl.exp2(peak - key_top)
        wide *= fade[:, None]
        thin *= fade
    wide, weight, base, base_weight = _whole_state(wide, thin, plain, count, inside, constant, eps)
    state = rounded(wide, OPERAND)
    store_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1, state)
    tl.store(weight_ptr + bh * M + features, weight, mask=inside)
    for start in range(0, queries, BN):
        _mix_tokens(
            q_ptr, out_ptr, total_ptr, top_ptr, w, rest, state, weight, base, base_weight, inside,
            start, queries, factor, qn, qd, on,
            D, E, BN, DP, EP, M % BM != 0, MAP, PARTS, OPERAND,
        )  # fmt: skip


@triton.jit
def _query_step(
    wide, thin, plain, q_ptr, grad_ptr, out_ptr, total_ptr, top_ptr, dq_ptr,
    w, rest, state, weight, inside, start, last, factor, root, qn, qd, gn, gd, on, dqn,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    PADDED: tl.constexpr, MAP: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Gradients of BN queries; the sums for the gradient of the state with these, and their y."""
    rows = start + tl.arange(0, BN)
    keep = rows < last
    grad = load_rows(grad_ptr, rows, keep, gn, 0, E, EP, gd)
    out = load_rows(out_ptr, rows, keep, on, 0, E, EP, 1)
    u, y = scaled_gradient(grad, out, tl.load(total_ptr + rows, mask=keep, other=1.0), OPERAND)
    shift = y
    if MAP == "favor_softmax":
        shift = tl.load(top_ptr + rows, mask=keep, other=0.0)
    x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
    z = project(x, w, rest, PARTS, OPERAND)
    t = map_input(z, shift, inside, factor, PADDED, MAP)
    g = feature(t, MAP, OPERAND)
    thin += tl.sum(g * y[:, None], axis=0)
    wide = materialize(product(tl.trans(rounded(g, OPERAND)), u, wide, OPERAND))
    plain += tl.sum(u.to(tl.float32), axis=0)[None, :]
    dg = product(u, tl.trans(state), tl.zeros(z.shape, tl.float32), OPERAND)
    dg = add_outer(dg, y, weight, OPERAND)
    dz = dg * slope(t, g, MAP, OPERAND)
    acc = tl.zeros([BN, DP], tl.float32)
    acc = product(rounded(dz, OPERAND), exact(w, OPERAND), acc, OPERAND)
    dq = input_gradient(acc, tl.sum(dz, axis=1), x, root, MAP)
    store_rows(dq_ptr, rows, keep, dqn, 0, D, DP, 1, dq)
    return wide, thin, plain, y


@triton.jit
def _key_step(
    k_ptr, v_ptr, mask_ptr, dk_ptr, dv_ptr, w, rest, state, weight, base, top, inside,
    start, last, factor, norm, root, kn, kd, vn, vd, dkn, dvn,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    PADDED: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr, PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Gradients of BN keys and values; zero where masked."""
    rows = start + tl.arange(0, BN)
    keep = rows < last
    seen = keep
    if MASKED:
        seen = tl.load(mask_ptr + rows, mask=keep, other=0) != 0
    v = exact(load_rows(v_ptr, rows, seen, vn, 0, E, EP, vd), OPERAND)
    x = load_rows(k_ptr, rows, seen, kn, 0, D, DP, kd)
    along = tl.zeros([BN], tl.float32)
    shift = along
    if MAP == "favor_softmax":
        shift = key_shift(x, seen, top, norm)
    dk, dv, along = add_key_gradients(
        tl.zeros([BN, DP], tl.float32), tl.zeros([BN, EP], tl.float32), along, x, v, w, rest,
        state, weight, shift, inside, factor, PADDED, MAP, PARTS, OPERAND,
    )  # fmt: skip
    dv = tl.where(seen[:, None], dv + base[None, :], 0.0)
    store_rows(dv_ptr, rows, keep, dvn, 0, E, EP, 1, dv)
    dk = tl.where(seen[:, None], input_gradient(dk, along, x, root, MAP), 0.0)
    store_rows(dk_ptr, rows, keep, dkn, 0, D, DP, 1, dk)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def head_backward(
    q_ptr, k_ptr, v_ptr, w_ptr, mask_ptr, state_ptr, weight_ptr, key_top_ptr, grad_ptr, out_ptr,
    total_ptr, top_ptr, dq_ptr, dk_ptr, dv_ptr,
    heads, queries, keys, factor, norm, root, constant, eps,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, gb, gh, gn, gd, ob, oh, on,
    dqb, dqh, dqn, dkb, dkh, dkn, dvb, dvh, dvn,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, then from the gradient of the state those of keys and values."""
    PADDED: tl.constexpr = M % BM != 0
    bh = tl.program_id(0).to(tl.int64)
    q_ptr += head_offset(bh, heads, qb, qh)
    grad_ptr += head_offset(bh, heads, gb, gh)
    out_ptr += head_offset(bh, heads, ob, oh)
    dq_ptr += head_offset(bh, heads, dqb, dqh)
    total_ptr += bh * queries
    if MAP == "favor_softmax":
        top_ptr += bh * queries
    features = tl.arange(0, BM)
    inside = features < M
    w, rest = load_projection(w_ptr, 0, M, D, BM, DP, PARTS)
    state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
    weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
    wide = tl.zeros([BM, EP], tl.float32)
    thin = tl.zeros([BM], tl.float32)
    plain = tl.zeros([1, EP], tl.float32)
    tally = tl.zeros([BN], tl.float32)
    for start in range(0, queries, BN):
        wide, thin, plain, y = _query_step(
            wide, thin, plain, q_ptr, grad_ptr, out_ptr, total_ptr, top_ptr, dq_ptr,
            w, rest, state, weight, inside, start, queries, factor, root,
            qn, qd, gn, gd, on, dqn, D, E, BN, DP, EP, PADDED, MAP, PARTS, OPERAND,
        )  # fmt: skip
        tally += y
    count = tl.sum(tally, axis=0)
    wide, weight, base, _ = _whole_state(wide, thin, plain, count, inside, constant, eps)
    state = rounded(wide, OPERAND)
    k_ptr += head_offset(bh, heads, kb, kh)
    v_ptr += head_offset(bh, heads, vb, vh)
    dk_ptr += head_offset(bh, heads, dkb, dkh)
    dv_ptr += head_offset(bh, heads, dvb, dvh)
    top = tl.load(key_top_ptr + bh) if MAP == "favor_softmax" else 0.0
    if MASKED:
        mask_ptr += bh // heads * keys
    for start in range(0, keys, BN):
        _key_step(
            k_ptr, v_ptr, mask_ptr, dk_ptr, dv_ptr, w, rest, state, weight, base, top, inside,
            start, keys, factor, norm, root, kn, kd, vn, vd, dkn, dvn,
            D, E, BN, DP, EP, PADDED, MAP, MASKED, PARTS, OPERAND,
        )  # fmt: skip
