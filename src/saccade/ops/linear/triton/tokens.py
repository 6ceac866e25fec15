"""What every token does with the state of its head: outputs forward, gradients backward.

With g the features of a row and (S, s, b) of the forward pass, (dS, ds, db) of its gradient:

    mix             o = (g S + b) / z,  z = g.s + b'
    query_gradient  dg = (S do - s (do.o)) / z
    key_gradient    dv = g dS + db,     dg = dS v + ds

and dx = dg dg/dx through the map. One program takes BN tokens and goes over the features in blocks.
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
    project,
    rounded,
    slope,
    store_rows,
)

__all__ = ["key_gradient", "mix", "query_gradient"]


@triton.jit(do_not_specialize=RUNTIME_SIZES[:2])
def mix(
    q_ptr,
    w_ptr,
    state_ptr,
    weight_ptr,
    base_ptr,
    out_ptr,
    total_ptr,
    top_ptr,
    heads,
    tokens,
    factor,
    norm,
    qb,
    qh,
    qn,
    qd,
    ob,
    oh,
    on,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    MAP: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Outputs o and denominators z; for FAVOR+ also the largest exponent of each query."""
    tiles = tl.cdiv(tokens, BN)
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    keep = rows < tokens
    q_ptr += head_offset(bh, heads, qb, qh)
    if MAP != "identity":
        x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
        half = half_norm(x, norm)
    top = tl.full([BN], float("-inf"), tl.float32)
    acc = tl.zeros([BN, EP], tl.float32)
    total = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        if MAP == "identity":
            z = load_rows(q_ptr, rows, keep, qn, first, M, BM, qd).to(tl.float32)
        else:
            z, _ = project(x, w_ptr, first, M, D, BM, DP, PARTS, OPERAND)
        if MAP == "favor_softmax":
            exponent = z * factor - half[:, None]
            if M % BM != 0:
                exponent = tl.where(inside[None, :], exponent, float("-inf"))
            highest = tl.maximum(top, tl.max(exponent, axis=1))
            g = tl.exp2(exponent - highest[:, None])
            fade = tl.exp2(top - highest)
            acc *= fade[:, None]
            total *= fade
            top = highest
        else:
            g = feature(z * factor, MAP)
        g = rounded(g, OPERAND)
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        acc = product(g, state, acc, OPERAND)
        total += tl.sum(g.to(tl.float32) * weight[None, :], axis=1)
    cols = tl.arange(0, EP)
    base = tl.load(base_ptr + bh * (E + 1) + cols, mask=cols < E, other=0.0)
    total += tl.load(base_ptr + bh * (E + 1) + E)
    total = tl.where(total == 0, 1.0, total)
    out = (acc + base[None, :]) / total[:, None]
    store_rows(out_ptr + head_offset(bh, heads, ob, oh), rows, keep, on, 0, E, EP, 1, out)
    tl.store(total_ptr + bh * tokens + rows, total, mask=keep)
    if MAP == "favor_softmax":
        tl.store(top_ptr + bh * tokens + rows, top, mask=keep)


@triton.jit(do_not_specialize=RUNTIME_SIZES[:2])
def query_gradient(
    q_ptr,
    w_ptr,
    state_ptr,
    weight_ptr,
    grad_ptr,
    out_ptr,
    total_ptr,
    top_ptr,
    pull_ptr,
    dq_ptr,
    heads,
    tokens,
    factor,
    norm,
    root,
    qb,
    qh,
    qn,
    qd,
    gb,
    gh,
    gn,
    gd,
    ob,
    oh,
    on,
    db,
    dh,
    dn,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    MAP: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Gradients of the queries, and -do.o for the gradient of the state."""
    tiles = tl.cdiv(tokens, BN)
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    keep = rows < tokens
    q_ptr += head_offset(bh, heads, qb, qh)
    dq_ptr += head_offset(bh, heads, db, dh)
    grad = load_rows(grad_ptr + head_offset(bh, heads, gb, gh), rows, keep, gn, 0, E, EP, gd)
    out = load_rows(out_ptr + head_offset(bh, heads, ob, oh), rows, keep, on, 0, E, EP, 1)
    pull = -tl.sum(grad.to(tl.float32) * out.to(tl.float32), axis=1)
    tl.store(pull_ptr + bh * tokens + rows, pull, mask=keep)
    grad = exact(grad, OPERAND)
    inverse = 1.0 / tl.load(total_ptr + bh * tokens + rows, mask=keep, other=1.0)
    if MAP != "identity":
        x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
    if MAP == "favor_softmax":
        shift = half_norm(x, norm) + tl.load(top_ptr + bh * tokens + rows, mask=keep, other=0.0)
    acc = tl.zeros([BN, DP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        dg = pull[:, None] * weight[None, :]
        dg = product(grad, tl.trans(state), dg, OPERAND)
        if MAP == "identity":
            store_rows(dq_ptr, rows, keep, dn, first, M, BM, 1, dg * inverse[:, None])
        else:
            z, w = project(x, w_ptr, first, M, D, BM, DP, PARTS, OPERAND)
            y = z * factor
            if MAP == "favor_softmax":
                y = tl.where(inside[None, :], y - shift[:, None], float("-inf"))
            dz = dg * slope(y, feature(y, MAP), MAP)
            dz_rounded = rounded(dz, OPERAND)
            acc = product(dz_rounded, exact(w, OPERAND), acc, OPERAND)
            along += tl.sum(dz, axis=1)
    if MAP != "identity":
        dx = acc * root
        if MAP == "favor_softmax":
            dx -= (along * root * root)[:, None] * x.to(tl.float32)
        store_rows(dq_ptr, rows, keep, dn, 0, D, DP, 1, dx * inverse[:, None])


@triton.jit(do_not_specialize=RUNTIME_SIZES[:2])
def key_gradient(
    k_ptr,
    v_ptr,
    w_ptr,
    mask_ptr,
    state_ptr,
    weight_ptr,
    base_ptr,
    top_ptr,
    dk_ptr,
    dv_ptr,
    heads,
    tokens,
    factor,
    norm,
    root,
    kb,
    kh,
    kn,
    kd,
    vb,
    vh,
    vn,
    vd,
    dkb,
    dkh,
    dkn,
    dvb,
    dvh,
    dvn,
    M: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DP: tl.constexpr,
    EP: tl.constexpr,
    MAP: tl.constexpr,
    MASKED: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Gradients of keys and values; zero where masked."""
    tiles = tl.cdiv(tokens, BN)
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    keep = rows < tokens
    seen = keep
    if MASKED:
        seen = tl.load(mask_ptr + bh // heads * tokens + rows, mask=keep, other=0) != 0
    k_ptr += head_offset(bh, heads, kb, kh)
    dk_ptr += head_offset(bh, heads, dkb, dkh)
    v = load_rows(v_ptr + head_offset(bh, heads, vb, vh), rows, seen, vn, 0, E, EP, vd)
    v = exact(v, OPERAND)
    if MAP != "identity":
        x = load_rows(k_ptr, rows, seen, kn, 0, D, DP, kd)
    if MAP == "favor_softmax":
        shift = half_norm(x, norm) + tl.load(top_ptr + bh)
        shift = tl.where(seen, shift, float("inf"))
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, EP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        dg = tl.zeros([BN, BM], tl.float32) + weight[None, :]
        dg = product(v, tl.trans(state), dg, OPERAND)
        if MAP == "identity":
            g = load_rows(k_ptr, rows, seen, kn, first, M, BM, kd).to(tl.float32)
            dg = tl.where(seen[:, None], dg, 0.0)
            store_rows(dk_ptr, rows, keep, dkn, first, M, BM, 1, dg)
        else:
            z, w = project(x, w_ptr, first, M, D, BM, DP, PARTS, OPERAND)
            y = z * factor
            if MAP == "favor_softmax":
                y = tl.where(inside[None, :], y - shift[:, None], float("-inf"))
            g = feature(y, MAP)
            dz = dg * slope(y, g, MAP)
            dz_rounded = rounded(dz, OPERAND)
            dk = product(dz_rounded, exact(w, OPERAND), dk, OPERAND)
            along += tl.sum(dz, axis=1)
        dv = product(rounded(g, OPERAND), state, dv, OPERAND)
    cols = tl.arange(0, EP)
    dv += tl.load(base_ptr + bh * (E + 1) + cols, mask=cols < E, other=0.0)[None, :]
    dv = tl.where(seen[:, None], dv, 0.0)
    store_rows(dv_ptr + head_offset(bh, heads, dvb, dvh), rows, keep, dvn, 0, E, EP, 1, dv)
    if MAP != "identity":
        dk *= root
        if MAP == "favor_softmax":
            dk -= (along * root * root)[:, None] * x.to(tl.float32)
        dk = tl.where(seen[:, None], dk, 0.0)
        store_rows(dk_ptr, rows, keep, dkn, 0, D, DP, 1, dk)
