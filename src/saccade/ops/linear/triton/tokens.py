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

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.linear.triton.blocks import (
    RUNTIME_SIZES,
    add_outer,
    add_rows,
    exact,
    feature,
    half_norm,
    head_offset,
    load_projection,
    load_rows,
    product,
    project,
    rounded,
    slope,
    store_rows,
)

__all__ = [
    "add_features",
    "add_key_gradients",
    "divided",
    "input_gradient",
    "key_gradient",
    "key_shift",
    "map_input",
    "mix",
    "query_gradient",
    "scaled_gradient",
]


@triton.jit
def add_features(
    acc, total, top, z, state, weight, inside, factor,
    PADDED: tl.constexpr, MAP: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """g S and g.s with one more block of features, and the largest exponent so far."""
    if MAP == "favor_softmax":
        y = z * factor
        if PADDED:
            y = tl.where(inside[None, :], y, float("-inf"))
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
    q_ptr, w_ptr, state_ptr, weight_ptr, base_ptr, out_ptr, total_ptr, top_ptr,
    heads, tokens, factor, qb, qh, qn, qd, ob, oh, on,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Outputs o and denominators z; for FAVOR+ also the largest exponent of each query."""
    tiles = tl.cdiv(tokens, BN)
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    keep = rows < tokens
    q_ptr += head_offset(bh, heads, qb, qh)
    if MAP != "identity":
        x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
    top = tl.full([BN], float("-inf"), tl.float32)
    acc = tl.zeros([BN, EP], tl.float32)
    total = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        if MAP == "identity":
            z = load_rows(q_ptr, rows, keep, qn, first, M, BM, qd).to(tl.float32)
        else:
            w, rest = load_projection(w_ptr, first, M, D, BM, DP, PARTS)
            z = project(x, w, rest, PARTS, OPERAND)
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        acc, total, top = add_features(
            acc, total, top, z, state, weight, inside, factor, M % BM != 0, MAP, OPERAND
        )
    cols = tl.arange(0, EP)
    base = tl.load(base_ptr + bh * (E + 1) + cols, mask=cols < E, other=0.0)
    out, z = divided(acc, total, base, tl.load(base_ptr + bh * (E + 1) + E))
    store_rows(out_ptr + head_offset(bh, heads, ob, oh), rows, keep, on, 0, E, EP, 1, out)
    tl.store(total_ptr + bh * tokens + rows, z, mask=keep)
    if MAP == "favor_softmax":
        tl.store(top_ptr + bh * tokens + rows, top, mask=keep)


@triton.jit
def map_input(z, shift, inside, factor, PADDED: tl.constexpr, MAP: tl.constexpr):
    """What the map is taken of; `shift` is what FAVOR+ takes off the exponents."""
    y = z * factor
    if MAP == "favor_softmax":
        y -= shift[:, None]
        if PADDED:
            y = tl.where(inside[None, :], y, float("-inf"))
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
    q_ptr, w_ptr, state_ptr, weight_ptr, grad_ptr, out_ptr, total_ptr, top_ptr,
    scaled_ptr, pull_ptr, dq_ptr,
    heads, tokens, factor, root, qb, qh, qn, qd, gb, gh, gn, gd, ob, oh, on, db, dh, dn,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries, and u and y for the gradient of the state."""
    tiles = tl.cdiv(tokens, BN)
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    rows = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    keep = rows < tokens
    q_ptr += head_offset(bh, heads, qb, qh)
    dq_ptr += head_offset(bh, heads, db, dh)
    grad = load_rows(grad_ptr + head_offset(bh, heads, gb, gh), rows, keep, gn, 0, E, EP, gd)
    out = load_rows(out_ptr + head_offset(bh, heads, ob, oh), rows, keep, on, 0, E, EP, 1)
    total = tl.load(total_ptr + bh * tokens + rows, mask=keep, other=1.0)
    u, pull = scaled_gradient(grad, out, total, OPERAND)
    store_rows(scaled_ptr + bh * tokens * E, rows, keep, E, 0, E, EP, 1, u)
    tl.store(pull_ptr + bh * tokens + rows, pull, mask=keep)
    shift = pull
    if MAP != "identity":
        x = load_rows(q_ptr, rows, keep, qn, 0, D, DP, qd)
    if MAP == "favor_softmax":
        shift = tl.load(top_ptr + bh * tokens + rows, mask=keep, other=0.0)
    acc = tl.zeros([BN, DP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        dg = product(u, tl.trans(state), tl.zeros([BN, BM], tl.float32), OPERAND)
        dg = add_outer(dg, pull, weight, OPERAND)
        if MAP == "identity":
            store_rows(dq_ptr, rows, keep, dn, first, M, BM, 1, dg)
        else:
            w, rest = load_projection(w_ptr, first, M, D, BM, DP, PARTS)
            z = project(x, w, rest, PARTS, OPERAND)
            y = map_input(z, shift, inside, factor, M % BM != 0, MAP)
            dz = dg * slope(y, feature(y, MAP, OPERAND), MAP, OPERAND)
            acc = materialize(product(rounded(dz, OPERAND), exact(w, OPERAND), acc, OPERAND))
            along += tl.sum(dz, axis=1)
    if MAP != "identity":
        store_rows(dq_ptr, rows, keep, dn, 0, D, DP, 1, input_gradient(acc, along, x, root, MAP))


@triton.jit
def key_shift(x, seen, top, norm):
    """What FAVOR+ takes off the exponents of keys; a hidden key's features vanish."""
    return tl.where(seen, half_norm(x, norm) + top, float("inf"))


@triton.jit
def add_key_gradients(
    dk, dv, along, x, v, w, rest, state, weight, shift, inside, factor,
    PADDED: tl.constexpr, MAP: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """dz W, g dS and the sum of dz with one more block of features."""
    z = project(x, w, rest, PARTS, OPERAND)
    y = map_input(z, shift, inside, factor, PADDED, MAP)
    g = feature(y, MAP, OPERAND)
    dv = materialize(product(rounded(g, OPERAND), state, dv, OPERAND))
    dg = product(v, tl.trans(state), tl.zeros(z.shape, tl.float32), OPERAND)
    dg = add_outer(dg, tl.full([x.shape[0]], 1.0, tl.float32), weight, OPERAND)
    dz = dg * slope(y, g, MAP, OPERAND)
    dk = materialize(product(rounded(dz, OPERAND), exact(w, OPERAND), dk, OPERAND))
    return dk, dv, along + tl.sum(dz, axis=1)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def key_gradient(
    k_ptr, v_ptr, w_ptr, mask_ptr, state_ptr, weight_ptr, base_ptr, top_ptr, dk_ptr, dv_ptr,
    heads, tokens, factor, norm, root,
    kb, kh, kn, kd, vb, vh, vn, vd, dkb, dkh, dkn, dvb, dvh, dvn,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DP: tl.constexpr, EP: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    PARTS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
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
    shift = tl.zeros([BN], tl.float32)
    if MAP != "identity":
        x = load_rows(k_ptr, rows, seen, kn, 0, D, DP, kd)
    if MAP == "favor_softmax":
        shift = key_shift(x, seen, tl.load(top_ptr + bh), norm)
    dk = tl.zeros([BN, DP], tl.float32)
    dv = tl.zeros([BN, EP], tl.float32)
    along = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        features = first + tl.arange(0, BM)
        inside = features < M
        state = load_rows(state_ptr + bh * M * E, features, inside, E, 0, E, EP, 1)
        weight = tl.load(weight_ptr + bh * M + features, mask=inside, other=0.0)
        if MAP == "identity":
            g = load_rows(k_ptr, rows, seen, kn, first, M, BM, kd).to(tl.float32)
            dv = materialize(product(rounded(g, OPERAND), state, dv, OPERAND))
            dg = product(v, tl.trans(state), tl.zeros([BN, BM], tl.float32), OPERAND)
            dg = tl.where(seen[:, None], dg + weight[None, :], 0.0)
            store_rows(dk_ptr, rows, keep, dkn, first, M, BM, 1, dg)
        else:
            w, rest = load_projection(w_ptr, first, M, D, BM, DP, PARTS)
            dk, dv, along = add_key_gradients(
                dk, dv, along, x, v, w, rest, state, weight, shift, inside, factor,
                M % BM != 0, MAP, PARTS, OPERAND,
            )  # fmt: skip
    cols = tl.arange(0, EP)
    dv += tl.load(base_ptr + bh * (E + 1) + cols, mask=cols < E, other=0.0)[None, :]
    dv = tl.where(seen[:, None], dv, 0.0)
    store_rows(dv_ptr + head_offset(bh, heads, dvb, dvh), rows, keep, dvn, 0, E, EP, 1, dv)
    if MAP != "identity":
        dk = tl.where(seen[:, None], input_gradient(dk, along, x, root, MAP), 0.0)
        store_rows(dk_ptr, rows, keep, dkn, 0, D, DP, 1, dk)
