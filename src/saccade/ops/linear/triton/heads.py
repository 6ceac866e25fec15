"""Whole heads: one program takes a head from its keys to its outputs, or back.

The same sums and steps as in `state` and `tokens`, with all features at once. States and sums stay
on the chip, nothing is summed in chunks, and the features of a query are formed once for both uses
that the backward pass has for them. For many heads with few features.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import launch_of
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops.linear.triton.library import (
    RUNTIME_SIZES,
    add_outer,
    derivative,
    exact,
    feature,
    load_projection,
    load_rows,
    load_state,
    product,
    project,
    rounded,
    store_rows,
    store_state,
)
from saccade.ops.linear.triton.shapes import Call, processors, state_dtype
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

__all__ = ["run_head_backward", "run_head_forward", "takes_whole_heads"]


@triton.jit
def _complete_state(state_sum, weight_sum, u_sum, count, m_features, constant, eps):
    """S, s, b and b' of the whole head from its sums."""
    u_sum = tl.max(u_sum, axis=0)
    state_sum, weight_sum = with_constant(state_sum, weight_sum, m_features, u_sum, count, constant)
    base = constant * tl.sum(state_sum, axis=0) + eps * u_sum
    return state_sum, weight_sum, base, constant * tl.sum(weight_sum, axis=0) + eps * count


@triton.jit
def _mix_tokens(
    p_q,
    p_out,
    p_total,
    p_top,
    w,
    rest,
    state,
    weight,
    base,
    base_weight,
    m_features,
    start,
    last,
    factor,
    qn,
    qd,
    on,
    CALL: tl.constexpr,
    BN: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Outputs, denominators and largest exponents of BN queries."""
    EP: tl.constexpr = CALL.EP
    rows = start + tl.arange(0, BN)
    m_rows = rows < last
    x = load_rows(p_q, rows, m_rows, qn, 0, CALL.D, CALL.DP, qd)  # (BN, DP)
    z = project(x, w, rest, CALL.PARTS, CALL.OPERAND)
    acc = tl.zeros([BN, EP], tl.float32)
    total = tl.zeros([BN], tl.float32)
    top = tl.full([BN], float("-inf"), tl.float32)
    acc, total, top = add_features(
        acc, total, top, z, state, weight, m_features, factor, PADDED, CALL.MAP, CALL.OPERAND
    )
    out, z = divided(acc, total, base, base_weight)
    store_rows(p_out, rows, m_rows, on, 0, CALL.E, EP, 1, out)
    tl.store(p_total + rows, z, mask=m_rows)
    if CALL.MAP == "favor_softmax":
        tl.store(p_top + rows, top, mask=m_rows)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def head_forward(
    p_q,
    p_k,
    p_v,
    p_w,
    p_mask,
    p_state,
    p_weight,
    p_key_top,
    p_out,
    p_total,
    p_top,
    heads,
    queries,
    keys,
    coefficients,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The state of one head and its outputs."""
    EP: tl.constexpr = CALL.EP
    factor, norm, constant, eps = coefficients
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    ob, oh, on = out_strides
    SUMS: tl.constexpr = 16 if CALL.OPERAND == "bf16" else 1
    i_bh = tl.program_id(0).to(tl.int64)
    p_q += head_offset(i_bh, heads, qb, qh)
    p_k += head_offset(i_bh, heads, kb, kh)
    p_v += head_offset(i_bh, heads, vb, vh)
    p_out += head_offset(i_bh, heads, ob, oh)
    p_total += i_bh * queries
    if CALL.MAP == "favor_softmax":
        p_top += i_bh * queries
    if MASKED:
        p_mask += i_bh // heads * keys
    features = tl.arange(0, BM)
    m_features = features < CALL.M
    w, rest = load_projection(p_w, 0, CALL.M, CALL.D, BM, CALL.DP, CALL.PARTS)
    state_sum = tl.zeros([BM, EP], tl.float32)
    weight_sum = tl.zeros([BM], tl.float32)
    u_sum = tl.zeros([SUMS, EP], tl.float32)
    peak = tl.full([BM], float("-inf"), tl.float32)
    y_sum = tl.zeros([BN], tl.float32)
    for start in range(0, keys, BN):
        state_sum, weight_sum, u_sum, peak, y = add_tokens(
            state_sum, weight_sum, u_sum, peak, p_k, p_v, p_mask, None, None, w, rest, features,
            start, keys, factor, norm, (kn, kd, vn, vd), CALL, BM, BN, False, MASKED,
        )  # fmt: skip
        y_sum += y
    count = tl.sum(y_sum, axis=0)
    if CALL.MAP == "favor_softmax":
        key_top = tl.max(tl.where(m_features, peak, float("-inf")), axis=0)
        key_top = tl.where(key_top == float("-inf"), 0.0, key_top)
        tl.store(p_key_top + i_bh, key_top)
        decay = tl.exp2(peak - key_top)
        state_sum *= decay[:, None]
        weight_sum *= decay
    state_sum, weight, base, base_weight = _complete_state(
        state_sum, weight_sum, u_sum, count, m_features, constant, eps
    )
    state = rounded(state_sum, CALL.OPERAND)
    store_state(p_state, i_bh, features, m_features, state, CALL)
    tl.store(p_weight + i_bh * CALL.M + features, weight, mask=m_features)
    for start in range(0, queries, BN):
        _mix_tokens(
            p_q, p_out, p_total, p_top, w, rest, state, weight, base, base_weight, m_features,
            start, queries, factor, qn, qd, on,
            CALL, BN, CALL.M % BM != 0,
        )  # fmt: skip


@triton.jit
def _query_step(
    state_sum,
    weight_sum,
    u_sum,
    p_q,
    p_grad,
    p_out,
    p_total,
    p_top,
    p_dq,
    w,
    rest,
    state,
    weight,
    m_features,
    start,
    last,
    factor,
    root,
    steps,
    CALL: tl.constexpr,
    BN: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Gradients of BN queries; the sums for the gradient of the state with these, and their y."""
    DP: tl.constexpr = CALL.DP
    qn, qd, gn, gd, on, dqn = steps
    rows = start + tl.arange(0, BN)
    m_rows = rows < last
    grad = load_rows(p_grad, rows, m_rows, gn, 0, CALL.E, CALL.EP, gd)  # (BN, EP)
    out = load_rows(p_out, rows, m_rows, on, 0, CALL.E, CALL.EP, 1)  # (BN, EP)
    u, y = scaled_gradient(grad, out, tl.load(p_total + rows, mask=m_rows, other=1.0), CALL.OPERAND)
    shift = y
    if CALL.MAP == "favor_softmax":
        shift = tl.load(p_top + rows, mask=m_rows, other=0.0)
    x = load_rows(p_q, rows, m_rows, qn, 0, CALL.D, DP, qd)  # (BN, DP)
    z = project(x, w, rest, CALL.PARTS, CALL.OPERAND)
    t = map_input(z, shift, m_features, factor, PADDED, CALL.MAP)
    g = feature(t, CALL.MAP, CALL.OPERAND)
    weight_sum += tl.sum(g * y[:, None], axis=0)
    state_sum = materialize(product(tl.trans(rounded(g, CALL.OPERAND)), u, state_sum, CALL.OPERAND))
    u_sum += tl.sum(u.to(tl.float32), axis=0)[None, :]
    dg = product(u, tl.trans(state), tl.zeros(z.shape, tl.float32), CALL.OPERAND)
    dg = add_outer(dg, y, weight, CALL.OPERAND)
    dz = dg * derivative(t, g, CALL.MAP, CALL.OPERAND)
    acc = tl.zeros([BN, DP], tl.float32)
    acc = product(rounded(dz, CALL.OPERAND), exact(w, CALL.OPERAND), acc, CALL.OPERAND)
    dq = input_gradient(acc, tl.sum(dz, axis=1), x, root, CALL.MAP)
    store_rows(p_dq, rows, m_rows, dqn, 0, CALL.D, DP, 1, dq)
    return state_sum, weight_sum, u_sum, y


@triton.jit
def _key_step(
    p_k,
    p_v,
    p_mask,
    p_dk,
    p_dv,
    w,
    rest,
    state,
    weight,
    base,
    top,
    m_features,
    start,
    last,
    factor,
    norm,
    root,
    steps,
    CALL: tl.constexpr,
    BN: tl.constexpr,
    PADDED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Gradients of BN keys and values; zero where masked."""
    DP: tl.constexpr = CALL.DP
    EP: tl.constexpr = CALL.EP
    kn, kd, vn, vd, dkn, dvn = steps
    rows = start + tl.arange(0, BN)
    m_rows = rows < last
    m_seen = m_rows
    if MASKED:
        m_seen = tl.load(p_mask + rows, mask=m_rows, other=0) != 0
    v = exact(load_rows(p_v, rows, m_seen, vn, 0, CALL.E, EP, vd), CALL.OPERAND)  # (BN, EP)
    x = load_rows(p_k, rows, m_seen, kn, 0, CALL.D, DP, kd)  # (BN, DP)
    along = tl.zeros([BN], tl.float32)
    shift = along
    if CALL.MAP == "favor_softmax":
        shift = key_shift(x, m_seen, top, norm)
    dk, dv, along = add_key_gradients(
        tl.zeros([BN, DP], tl.float32), tl.zeros([BN, EP], tl.float32), along, x, v, w,
        rest, state, weight, shift, m_features, factor, PADDED, CALL.MAP, CALL.PARTS, CALL.OPERAND,
    )  # fmt: skip
    dv = tl.where(m_seen[:, None], dv + base[None, :], 0.0)
    store_rows(p_dv, rows, m_rows, dvn, 0, CALL.E, EP, 1, dv)
    dk = tl.where(m_seen[:, None], input_gradient(dk, along, x, root, CALL.MAP), 0.0)
    store_rows(p_dk, rows, m_rows, dkn, 0, CALL.D, DP, 1, dk)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def head_backward(
    p_q,
    p_k,
    p_v,
    p_w,
    p_mask,
    p_state,
    p_weight,
    p_key_top,
    p_grad,
    p_out,
    p_total,
    p_top,
    p_dq,
    p_dk,
    p_dv,
    heads,
    queries,
    keys,
    coefficients,
    input_strides,
    output_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Gradients of the queries, then from the gradient of the state those of keys and values."""
    EP: tl.constexpr = CALL.EP
    factor, norm, root, constant, eps = coefficients
    q_strides, k_strides, v_strides, grad_strides = input_strides
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    gb, gh, gn, gd = grad_strides
    out_strides, dq_strides, dk_strides, dv_strides = output_strides
    ob, oh, on = out_strides
    dqb, dqh, dqn = dq_strides
    dkb, dkh, dkn = dk_strides
    dvb, dvh, dvn = dv_strides
    PADDED: tl.constexpr = CALL.M % BM != 0
    MASKED: tl.constexpr = p_mask is not None
    i_bh = tl.program_id(0).to(tl.int64)
    p_q += head_offset(i_bh, heads, qb, qh)
    p_grad += head_offset(i_bh, heads, gb, gh)
    p_out += head_offset(i_bh, heads, ob, oh)
    p_dq += head_offset(i_bh, heads, dqb, dqh)
    p_total += i_bh * queries
    if CALL.MAP == "favor_softmax":
        p_top += i_bh * queries
    features = tl.arange(0, BM)
    m_features = features < CALL.M
    w, rest = load_projection(p_w, 0, CALL.M, CALL.D, BM, CALL.DP, CALL.PARTS)
    state = load_state(p_state, i_bh, features, m_features, CALL)  # (BM, EP)
    weight = tl.load(p_weight + i_bh * CALL.M + features, mask=m_features, other=0.0)
    state_sum = tl.zeros([BM, EP], tl.float32)
    weight_sum = tl.zeros([BM], tl.float32)
    u_sum = tl.zeros([1, EP], tl.float32)
    y_sum = tl.zeros([BN], tl.float32)
    for start in range(0, queries, BN):
        state_sum, weight_sum, u_sum, y = _query_step(
            state_sum, weight_sum, u_sum, p_q, p_grad, p_out, p_total, p_top, p_dq,
            w, rest, state, weight, m_features, start, queries, factor, root,
            (qn, qd, gn, gd, on, dqn), CALL, BN, PADDED,
        )  # fmt: skip
        y_sum += y
    state_sum, weight, base, _ = _complete_state(
        state_sum, weight_sum, u_sum, tl.sum(y_sum, axis=0), m_features, constant, eps
    )
    state = rounded(state_sum, CALL.OPERAND)
    p_k += head_offset(i_bh, heads, kb, kh)
    p_v += head_offset(i_bh, heads, vb, vh)
    p_dk += head_offset(i_bh, heads, dkb, dkh)
    p_dv += head_offset(i_bh, heads, dvb, dvh)
    top = tl.load(p_key_top + i_bh) if CALL.MAP == "favor_softmax" else 0.0
    if MASKED:
        p_mask += i_bh // heads * keys
    for start in range(0, keys, BN):
        _key_step(
            p_k, p_v, p_mask, p_dk, p_dv, w, rest, state, weight, base, top, m_features,
            start, keys, factor, norm, root, (kn, kd, vn, vd, dkn, dvn), CALL, BN, PADDED, MASKED,
        )  # fmt: skip


# Whole heads: all features at once, and the state beside them, in the registers of a program.
HEADS_PER_PROCESSOR = 4
MAX_FEATURES = 128
MAX_HEAD_DIM = 32
HEAVY_DERIVATIVES = ("gelu",)  # with them the backward pass of a whole head spills registers
# FAVOR+ keeps maxima beside its sums. With so many registers four programs of a whole head run at
# once instead of two, which is worth what is spilled: a seventh faster (docs/log.md).
FAVOR_REGISTERS = 128


def takes_whole_heads(call: Call, q: Tensor, *, backward: bool = False) -> bool:
    """Whether one program a head fills the device, and all features of a head fit into it."""
    heads = q.shape[0] * q.shape[1]
    return (
        call.dtype == torch.bfloat16
        and call.weights is not None
        and not (backward and call.feature_map in HEAVY_DERIVATIVES)
        and call.num_features <= MAX_FEATURES
        and max(call.dim, call.width) <= MAX_HEAD_DIM
        and heads >= HEADS_PER_PROCESSOR * processors(q.device)
    )


def run_head_forward(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    *,
    constant: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Write the output; give S, s, the largest key exponent, and z and exponents of the queries."""
    batch, heads, queries = q.shape[:3]
    favor = call.feature_map == "favor_softmax"
    new = functools.partial(q.new_empty, dtype=torch.float32)
    kept = (
        q.new_empty(batch, heads, call.num_features, call.width, dtype=state_dtype(call.dtype)),
        new((batch, heads, call.num_features)),
        new((batch, heads) if favor else 0),
        new((batch, heads, queries)),
        new((batch, heads, queries) if favor else 0),
    )
    launch = launch_of(
        head_forward, (batch * heads,),
        heads, queries, k.shape[2], (*call.numbers(), constant, eps),
        q.stride(), k.stride(), v.stride(), out.stride()[:3],
        MASKED=key_mask is not None, **call.tiles("head"), CALL=call.constants(),
        **({"maxnreg": FAVOR_REGISTERS} if favor else {}),
    )  # fmt: skip
    launch(q, k, v, call.weights, key_mask, *kept[:3], out, *kept[3:])
    return kept


def run_head_backward(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    grad: Tensor,
    out: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    *,
    constant: float,
    eps: float,
) -> None:
    """Write the gradients of q, k and v from what `run_head_forward` gave."""
    batch, heads, queries = q.shape[:3]
    launch = launch_of(
        head_backward, (batch * heads,),
        heads, queries, k.shape[2],
        (*call.numbers(), math.sqrt(call.scale), constant, eps),
        tuple(x.stride() for x in (q, k, v, grad)),
        tuple(x.stride()[:3] for x in (out, *gradients)),
        **call.tiles("head_gradient"), CALL=call.constants(),
    )  # fmt: skip
    launch(q, k, v, call.weights, key_mask, *kept[:3], grad, out, *kept[3:], *gradients)
