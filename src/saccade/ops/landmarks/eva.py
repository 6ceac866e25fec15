"""EVA (arXiv:2302.04542): one softmax over the keys of a window and over one key for each run.

Tokens are cut into windows of w and into m runs. Run c has a key K_c, a direction W_c and a value

    B_c = sum_j softmax_j(W_c.k_j - |k_j|^2 / 2) v_j,   j in run c

and token i attends to the tokens of its window and to all runs:

    o_i = (sum_j exp(s q_i.k_j) v_j + sum_c exp(s q_i.K_c) B_c) / (the same sum of exponentials)

Cost: 4 N (w + 2 m) D FLOPs per head. Layout (B, H, N, D); sums are float32, or float64 for float64.

# DEVIATION: in training the published code adds Gaussian noise to W_c; here it is the mean of that
distribution, as in their evaluation. In the published code, windows and runs of images are squares
of the grid; here they are intervals of tokens in their order, including the class token.
"""

import torch
from torch import Tensor

from saccade.ops.arguments import (
    check_key_mask,
    check_qkv,
    compute_dtype,
    in_chunks,
    in_full_precision,
    resolve_scale,
    select_queries,
)
from saccade.ops.landmarks.segments import run_members

__all__ = ["eva_attention", "eva_reference", "eva_weights"]


def eva_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    run_keys: Tensor,
    directions: Tensor,
    *,
    window: int,
    scale: float,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The equation with N x N and N x m matrices; arguments as for `eva_attention`."""
    member = run_members(k, run_keys.shape[2], key_mask)
    logits = torch.einsum("bhcd,bhjd->bhcj", directions, k) - (k**2).sum(dim=-1)[:, :, None] / 2
    summaries = torch.einsum("bhcj,bhje->bhce", _softmax(logits, member), v)
    near = _same_window(k, window, key_mask)
    local = torch.einsum("bhid,bhjd->bhij", q, k)
    far = torch.einsum("bhid,bhcd->bhic", q, run_keys)
    every = torch.ones_like(far, dtype=torch.bool)
    both = torch.cat([near.expand_as(local), every], dim=-1)
    weights = _softmax(scale * torch.cat([local, far], dim=-1), both)
    return torch.einsum("bhij,bhje->bhie", weights, torch.cat([v, summaries], dim=2))


def _softmax(scores: Tensor, kept: Tensor) -> Tensor:
    """Softmax over the last axis; 0 if everything is masked."""
    kept = kept.expand_as(scores)
    low = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~kept, low), dim=-1).masked_fill(~kept, 0)


def _same_window(k: Tensor, window: int, key_mask: Tensor | None) -> Tensor:
    """True for the keys of a token's window, (1 or B, 1, N, N)."""
    own = torch.arange(k.shape[2], device=k.device) // window
    near = (own[:, None] == own[None])[None, None]
    return near if key_mask is None else near & key_mask[:, None, None, :]


@in_full_precision
def eva_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    run_keys: Tensor,
    directions: Tensor,
    *,
    window: int,
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Attend to a window of keys and to all runs.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, N, D), of the same tokens.
        v: Values (B, H, N, E).
        run_keys: K (B, H, m, D).
        directions: W (B, H, m, D).
        window: Tokens of a window.
        scale: Factor of the scores; 1/sqrt(D) by default.
        key_mask: (B, N), True = attend. A sample that masks every key gets 0.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    query, key, value = _prepared(q, k, v, scale, key_mask)
    summaries = _run_weights(key, directions.to(key.dtype), key_mask) @ value
    kept = torch.ones_like(key[:, :1, :, :1]) if key_mask is None else key_mask[:, None, :, None]
    kept = in_chunks(kept.to(key.dtype), window).mT > 0  # (B, 1, windows, 1, w)
    far = in_chunks(query @ run_keys.to(key.dtype).mT, window)
    local = in_chunks(query, window) @ in_chunks(key, window).mT
    scores = torch.cat([local.masked_fill(~kept, torch.finfo(key.dtype).min), far], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    near, far = weights[..., :window], weights[..., window:]
    near = near.masked_fill(~kept, 0)
    # Flat products: a batch of windows would repeat the summaries.
    out: Tensor = (near @ in_chunks(value, window)).flatten(2, 3) + far.flatten(2, 3) @ summaries
    own = torch.arange(q.shape[2], device=out.device)  # a slice cannot be exported for any length
    return out.index_select(2, own).to(v.dtype)


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled queries, keys and values in the dtype of sums, those of masked keys 0."""
    dtype = compute_dtype(k.dtype)
    query, key, value = q.to(dtype) * resolve_scale(scale, q.shape[-1]), k.to(dtype), v.to(dtype)
    if key_mask is None:
        return query, key, value
    hidden = ~key_mask[:, None, :, None]
    return query, key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)


def _run_weights(key: Tensor, directions: Tensor, key_mask: Tensor | None) -> Tensor:
    """The weights of the tokens in the summary of each run, (B, H, m, N)."""
    logits = directions @ key.mT - key.square().sum(dim=-1)[:, :, None] / 2
    return _softmax(logits, run_members(key, directions.shape[2], key_mask))


@in_full_precision
def eva_weights(
    q: Tensor,
    k: Tensor,
    run_keys: Tensor,
    directions: Tensor,
    *,
    window: int,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, N): those of the window, and those of the runs."""
    query, key, _ = _prepared(q, k, k, scale, key_mask)
    query = select_queries(query, queries)
    near = select_queries(_same_window(key, window, key_mask), queries)
    scores = torch.cat([query @ key.mT, query @ run_keys.to(key.dtype).mT], dim=-1)
    every = near.new_ones(*near.shape[:3], run_keys.shape[2])
    weights = _softmax(scores, torch.cat([near, every], dim=-1))
    local, far = weights[..., : k.shape[2]], weights[..., k.shape[2] :]
    runs = _run_weights(key, directions.to(key.dtype), key_mask)
    return (local + far @ runs).to(q.dtype)
