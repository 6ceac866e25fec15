"""What every token does with the state of its head: outputs forward, gradients backward.

With g the features of a row and (S, s, b) of the forward pass, (dS, ds, db) of its gradient:

    mix             o = (g S + b) / z,  z = g.s + b'
    query_gradient  dg = S u + s y,     u = do / z,  y = -u.o
    key_gradient    dv = g dS + db,     dg = dS v + ds

and dx = dg dg/dx through the map. One program takes BN tokens and goes over the features in blocks.
FAVOR+ takes a query's features relative to its largest: |q|^2 then cancels, and only its slope is
left.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

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
    add_rows,
    derivative,
    exact,
    feature,
    half_norm,
    load_projection,
    load_rows,
    load_state,
    product,
    project,
    rounded,
    store_rows,
)
from saccade.ops.linear.triton.shapes import Call, HeadState, QueryRows

__all__ = [
    "add_features",
    "add_key_gradients",
    "divided",
    "input_gradient",
    "key_shift",
    "map_input",
    "run_key_gradient",
    "run_mix",
    "run_query_gradient",
    "scaled_gradient",
]


@triton.jit
def add_features(
    acc,
    total,
    top,
    z,
    state,
    weight,
    m_features,
    factor,
    PADDED: tl.constexpr,
    MAP: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """g S and g.s with one more block of features, and the largest exponent so far."""
    if MAP == "favor_softmax":
        y = z * factor
        if PADDED:
            y = tl.where(m_features[None, :], y, float("-inf"))
        highest = tl.maximum(top, tl.max(y, axis=1))
        g = tl.exp2(y - highest[:, None])
        fade = tl.exp2(top - highest)
        acc *= fade[:, None]
        total *= fade
        top = highest
    else:
        g = feature(z * factor, MAP, OPERAND)
    total = add_rows(total, g, weight)
    acc = materialize(product(rounded(g, OPERAND), state, acc, OPERAND))
    return acc, total, top


@triton.jit
def divided(acc, total, base, base_weight):
    """o and z from g S and g.s."""
    z = total + base_weight
    z = tl.where(z == 0, 1.0, z)
    return (acc + base[None, :]) * (1.0 / z)[:, None], z


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def mix(
    p_q,
    p_w,
    p_state,
    p_weight,
    p_p_rows,
    p_out,
    p_total,
    p_top,
    heads,
    tokens,
    factor,
    q_strides,
    out_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Outputs o and denominators z; for FAVOR+ also the largest exponent of each query."""
    EP: tl.constexpr = CALL.EP
    qb, qh, qn, qd = q_strides
    ob, oh, on = out_strides
    tiles = tl.cdiv(tokens, BN)
    i_bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    m_rows = rows < tokens
    p_q += head_offset(i_bh, heads, qb, qh)
    if CALL.MAP != "identity":
        x = load_rows(p_q, rows, m_rows, qn, 0, CALL.D, CALL.DP, qd)  # (BN, DP)
    top = tl.full([BN], float("-inf"), tl.float32)
    acc = tl.zeros([BN, EP], tl.float32)
    total = tl.zeros([BN], tl.float32)
    for first in range(0, CALL.M, BM):
        features = first + tl.arange(0, BM)
        m_features = features < CALL.M
        if CALL.MAP == "identity":
            z = load_rows(p_q, rows, m_rows, qn, first, CALL.M, BM, qd).to(tl.float32)  # (BN, BM)
        else:
            w, rest = load_projection(p_w, first, CALL.M, CALL.D, BM, CALL.DP, CALL.PARTS)
            z = project(x, w, rest, CALL.PARTS, CALL.OPERAND)
        state = load_state(p_state, i_bh, features, m_features, CALL)  # (BM, EP)
        weight = tl.load(p_weight + i_bh * CALL.M + features, mask=m_features, other=0.0)
        acc, total, top = add_features(
            acc,
            total,
            top,
            z,
            state,
            weight,
            m_features,
            factor,
            CALL.M % BM != 0,
            CALL.MAP,
            CALL.OPERAND,
        )
    cols = tl.arange(0, EP)
    base = tl.load(p_p_rows + i_bh * (CALL.E + 1) + cols, mask=cols < CALL.E, other=0.0)
    out, z = divided(acc, total, base, tl.load(p_p_rows + i_bh * (CALL.E + 1) + CALL.E))
    store_rows(p_out + head_offset(i_bh, heads, ob, oh), rows, m_rows, on, 0, CALL.E, EP, 1, out)
    tl.store(p_total + i_bh * tokens + rows, z, mask=m_rows)
    if CALL.MAP == "favor_softmax":
        tl.store(p_top + i_bh * tokens + rows, top, mask=m_rows)


@triton.jit
def map_input(z, shift, m_features, factor, PADDED: tl.constexpr, MAP: tl.constexpr):
    """What the map is taken of; `shift` is what FAVOR+ takes off the exponents."""
    y = z * factor
    if MAP == "favor_softmax":
        y -= shift[:, None]
        if PADDED:
            y = tl.where(m_features[None, :], y, float("-inf"))
    return y


@triton.jit
def input_gradient(acc, along, x, root, MAP: tl.constexpr):
    """The gradient of x from dz W and, for FAVOR+, the sum of dz."""
    dx = acc * root
    if MAP == "favor_softmax":
        dx -= (along * root * root)[:, None] * x.to(tl.float32)
    return dx


@triton.jit
def scaled_gradient(grad, out, total, OPERAND: tl.constexpr):
    """u = do / z as an operand, and y = -u.o of what was rounded: errors cancel in S u + s y."""
    u = rounded(grad.to(tl.float32) * (1.0 / total)[:, None], OPERAND)
    return u, -tl.sum(u.to(tl.float32) * out.to(tl.float32), axis=1)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def query_gradient(
    p_q,
    p_w,
    p_state,
    p_weight,
    p_grad,
    p_out,
    p_total,
    p_top,
    p_scaled,
    p_pull,
    p_dq,
    heads,
    tokens,
    factor,
    root,
    q_strides,
    grad_strides,
    out_strides,
    dq_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Gradients of the queries, and u and y for the gradient of the state."""
    DP: tl.constexpr = CALL.DP
    qb, qh, qn, qd = q_strides
    gb, gh, gn, gd = grad_strides
    ob, oh, on = out_strides
    db, dh, dn = dq_strides
    tiles = tl.cdiv(tokens, BN)
    i_bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    m_rows = rows < tokens
    p_q += head_offset(i_bh, heads, qb, qh)
    p_dq += head_offset(i_bh, heads, db, dh)
    grad = load_rows(
        p_grad + head_offset(i_bh, heads, gb, gh), rows, m_rows, gn, 0, CALL.E, CALL.EP, gd
    )
    out = load_rows(
        p_out + head_offset(i_bh, heads, ob, oh), rows, m_rows, on, 0, CALL.E, CALL.EP, 1
    )
    total = tl.load(p_total + i_bh * tokens + rows, mask=m_rows, other=1.0)
    u, pull = scaled_gradient(grad, out, total, CALL.OPERAND)
    store_rows(p_scaled + i_bh * tokens * CALL.E, rows, m_rows, CALL.E, 0, CALL.E, CALL.EP, 1, u)
    tl.store(p_pull + i_bh * tokens + rows, pull, mask=m_rows)
    shift = pull
    if CALL.MAP != "identity":
        x = load_rows(p_q, rows, m_rows, qn, 0, CALL.D, DP, qd)  # (BN, DP)
    if CALL.MAP == "favor_softmax":
        shift = tl.load(p_top + i_bh * tokens + rows, mask=m_rows, other=0.0)
    acc = tl.zeros([BN, DP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, CALL.M, BM):
        features = first + tl.arange(0, BM)
        m_features = features < CALL.M
        state = load_state(p_state, i_bh, features, m_features, CALL)  # (BM, EP)
        weight = tl.load(p_weight + i_bh * CALL.M + features, mask=m_features, other=0.0)
        dg = product(u, tl.trans(state), tl.zeros([BN, BM], tl.float32), CALL.OPERAND)
        dg = add_outer(dg, pull, weight, CALL.OPERAND)
        if CALL.MAP == "identity":
            store_rows(p_dq, rows, m_rows, dn, first, CALL.M, BM, 1, dg)
        else:
            w, rest = load_projection(p_w, first, CALL.M, CALL.D, BM, DP, CALL.PARTS)
            z = project(x, w, rest, CALL.PARTS, CALL.OPERAND)
            y = map_input(z, shift, m_features, factor, CALL.M % BM != 0, CALL.MAP)
            dz = dg * derivative(y, feature(y, CALL.MAP, CALL.OPERAND), CALL.MAP, CALL.OPERAND)
            acc = materialize(
                product(rounded(dz, CALL.OPERAND), exact(w, CALL.OPERAND), acc, CALL.OPERAND)
            )
            along += tl.sum(dz, axis=1)
    if CALL.MAP != "identity":
        dq = input_gradient(acc, along, x, root, CALL.MAP)
        store_rows(p_dq, rows, m_rows, dn, 0, CALL.D, DP, 1, dq)


@triton.jit
def key_shift(x, m_seen, top, norm):
    """What FAVOR+ takes off the exponents of keys; a hidden key's features vanish."""
    return tl.where(m_seen, half_norm(x, norm) + top, float("inf"))


@triton.jit
def add_key_gradients(
    dk,
    dv,
    along,
    x,
    v,
    w,
    rest,
    state,
    weight,
    shift,
    m_features,
    factor,
    PADDED: tl.constexpr,
    MAP: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """dz W, g dS and the sum of dz with one more block of features."""
    z = project(x, w, rest, PARTS, OPERAND)
    y = map_input(z, shift, m_features, factor, PADDED, MAP)
    g = feature(y, MAP, OPERAND)
    dv = materialize(product(rounded(g, OPERAND), state, dv, OPERAND))
    dg = product(v, tl.trans(state), tl.zeros(z.shape, tl.float32), OPERAND)
    dg = add_outer(dg, tl.full([x.shape[0]], 1.0, tl.float32), weight, OPERAND)
    dz = dg * derivative(y, g, MAP, OPERAND)
    dk = materialize(product(rounded(dz, OPERAND), exact(w, OPERAND), dk, OPERAND))
    return dk, dv, along + tl.sum(dz, axis=1)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def key_gradient(
    p_k,
    p_v,
    p_w,
    p_mask,
    p_state,
    p_weight,
    p_p_rows,
    p_top,
    p_dk,
    p_dv,
    heads,
    tokens,
    factor,
    norm,
    root,
    k_strides,
    v_strides,
    dk_strides,
    dv_strides,
    CALL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Gradients of keys and values; zero where masked."""
    DP: tl.constexpr = CALL.DP
    EP: tl.constexpr = CALL.EP
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    dkb, dkh, dkn = dk_strides
    dvb, dvh, dvn = dv_strides
    tiles = tl.cdiv(tokens, BN)
    i_bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    m_rows = rows < tokens
    m_seen = m_rows
    if MASKED:
        m_seen = tl.load(p_mask + i_bh // heads * tokens + rows, mask=m_rows, other=0) != 0
    p_k += head_offset(i_bh, heads, kb, kh)
    p_dk += head_offset(i_bh, heads, dkb, dkh)
    v = load_rows(p_v + head_offset(i_bh, heads, vb, vh), rows, m_seen, vn, 0, CALL.E, EP, vd)
    v = exact(v, CALL.OPERAND)
    shift = tl.zeros([BN], tl.float32)
    if CALL.MAP != "identity":
        x = load_rows(p_k, rows, m_seen, kn, 0, CALL.D, DP, kd)  # (BN, DP)
    if CALL.MAP == "favor_softmax":
        shift = key_shift(x, m_seen, tl.load(p_top + i_bh), norm)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, EP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, CALL.M, BM):
        features = first + tl.arange(0, BM)
        m_features = features < CALL.M
        state = load_state(p_state, i_bh, features, m_features, CALL)  # (BM, EP)
        weight = tl.load(p_weight + i_bh * CALL.M + features, mask=m_features, other=0.0)
        if CALL.MAP == "identity":
            g = load_rows(p_k, rows, m_seen, kn, first, CALL.M, BM, kd).to(tl.float32)  # (BN, BM)
            dv = materialize(product(rounded(g, CALL.OPERAND), state, dv, CALL.OPERAND))
            dg = product(v, tl.trans(state), tl.zeros([BN, BM], tl.float32), CALL.OPERAND)
            dg = tl.where(m_seen[:, None], dg + weight[None, :], 0.0)
            store_rows(p_dk, rows, m_rows, dkn, first, CALL.M, BM, 1, dg)
        else:
            w, rest = load_projection(p_w, first, CALL.M, CALL.D, BM, DP, CALL.PARTS)
            dk, dv, along = add_key_gradients(
                dk, dv, along, x, v, w, rest, state, weight, shift, m_features, factor,
                CALL.M % BM != 0, CALL.MAP, CALL.PARTS, CALL.OPERAND,
            )  # fmt: skip
    cols = tl.arange(0, EP)
    dv += tl.load(p_p_rows + i_bh * (CALL.E + 1) + cols, mask=cols < CALL.E, other=0.0)[None, :]
    dv = tl.where(m_seen[:, None], dv, 0.0)
    store_rows(p_dv + head_offset(i_bh, heads, dvb, dvh), rows, m_rows, dvn, 0, CALL.E, EP, 1, dv)
    if CALL.MAP != "identity":
        dk = tl.where(m_seen[:, None], input_gradient(dk, along, x, root, CALL.MAP), 0.0)
        store_rows(p_dk, rows, m_rows, dkn, 0, CALL.D, DP, 1, dk)


def run_mix(call: Call, q: Tensor, summed: HeadState, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the output; give every query's denominator and, for FAVOR+, largest exponent."""
    batch, heads, length = q.shape[:3]
    favor = call.feature_map == "favor_softmax"
    total = q.new_empty(batch, heads, length, dtype=torch.float32)
    top = q.new_empty((batch, heads, length) if favor else 0, dtype=torch.float32)
    blocks = call.tiles("mix")
    launch = launch_of(
        mix, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, call.numbers()[0], q.stride(), out.stride()[:3],
        **blocks, CALL=call.constants(),
    )  # fmt: skip
    launch(q, call.weights, summed.state, summed.weight, summed.base, out, total, top)
    return total, top


def run_query_gradient(
    call: Call,
    q: Tensor,
    summed: HeadState,
    rows: QueryRows,
    grad: Tensor,
    out: Tensor,
    dq: Tensor,
) -> None:
    """Write dq, and u and y of the rows."""
    batch, heads, length = q.shape[:3]
    blocks = call.tiles("gradient")
    launch = launch_of(
        query_gradient, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, call.numbers()[0], math.sqrt(call.scale),
        q.stride(), grad.stride(), out.stride()[:3], dq.stride()[:3],
        **blocks, CALL=call.constants(),
    )  # fmt: skip
    launch(
        q, call.weights, summed.state, summed.weight, grad, out,
        *rows, dq,
    )  # fmt: skip


def run_key_gradient(
    call: Call,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    summed: HeadState,
    top: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Write dk and dv from the gradient of the state."""
    batch, heads, length = k.shape[:3]
    blocks = call.tiles("gradient")
    launch = launch_of(
        key_gradient, (batch * heads * triton.cdiv(length, blocks["BN"]),),
        heads, length, *call.numbers(), math.sqrt(call.scale),
        k.stride(), v.stride(), dk.stride()[:3], dv.stride()[:3],
        MASKED=key_mask is not None, **blocks, CALL=call.constants(),
    )  # fmt: skip
    launch(k, v, call.weights, key_mask, summed.state, summed.weight, summed.base, top, dk, dv)
