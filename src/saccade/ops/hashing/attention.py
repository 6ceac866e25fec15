"""LSH attention in linear time (Reformer, arXiv:2001.04451): sort by hash, attend within chunks.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = exp(scale x_i.x_j / |x_j|) for the j in i's chunks

Queries and keys are one vector x. A round hashes all tokens, sorts them and cuts them into chunks;
a token attends to (meets) those of its chunk and of the chunk before (`reference.py`). A pair that
meets in several rounds counts once: its weight is divided by the number of those rounds. The rounds
are summed before the division. Cost: R N (B D + 8 m D) FLOPs per head for R rounds, B buckets and
chunks of m; memory R N m. Layout (B, H, N, D); everything is in float32, or float64 for float64.

Hashes have no gradient. A masked token is sorted last, has no weight as a key, and as a query
attends to all other tokens equally.
"""

import torch
import torch.nn.functional as F
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
from saccade.ops.hashing.reference import meetings

__all__ = ["lsh_attention", "lsh_weights"]


@in_full_precision
def lsh_attention(
    x: Tensor,
    v: Tensor,
    rotations: Tensor,
    *,
    chunk: int,
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Attend among tokens with equal hashes.

    Args:
        x: Shared queries and keys (B, H, N, D), in any dtype.
        v: Values (B, H, N, E).
        rotations: (rounds, buckets / 2, D); fixed, without a gradient.
        chunk: Tokens of a chunk.
        scale: Factor of the scores; 1/sqrt(D) by default.
        key_mask: (B, N), True = attend. A sample that masks every key gets 0.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    dtype = compute_dtype(x.dtype)
    query, value = x.to(dtype), v.to(dtype)
    check_qkv(query, query, value)
    check_key_mask(key_mask, query)
    scale = resolve_scale(scale, x.shape[-1])
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        query, value = query.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    sort = _Sorted(query, rotations.to(dtype), chunk, key_mask)
    key = sort.with_previous(sort.take(F.normalize(query, dim=-1, eps=1e-12)))
    score = (scale * sort.take(query)) @ key.mT - sort.count.to(dtype).clamp(min=1).log()
    score = score.masked_fill(~sort.meets, torch.finfo(dtype).min)
    top = sort.untake(score.detach().amax(dim=-1, keepdim=True)).amax(dim=2)  # (B, H, N, 1)
    weight = torch.exp(score - sort.take(top)).masked_fill(~sort.meets, 0)
    mixed = sort.untake(weight @ sort.with_previous(sort.take(value))).sum(dim=2)
    total = sort.untake(weight.sum(dim=-1, keepdim=True)).sum(dim=2)
    out = mixed / total.masked_fill(total == 0, 1)
    if key_mask is not None:
        count = key_mask.sum(dim=-1).clamp(min=1)[:, None, None, None]
        out = torch.where(hidden, value.sum(dim=2, keepdim=True) / count, out)
    return out.to(v.dtype)


class _Sorted:
    """Tokens sorted by hash in every round, and which pairs meet.

    A sorted tensor is (B, H, R, C, m, ...): rounds, chunks, places in a chunk. Context is the chunk
    before and the chunk itself, 2 m places.

    Attributes:
        meets: (B, H, R, C, m, 2 m), True if the token of a place meets that of a context place.
        count: The same shape, the number of rounds in which the two meet.
    """

    def __init__(self, x: Tensor, rotations: Tensor, chunk: int, key_mask: Tensor | None) -> None:
        tokens, rounds = x.shape[2], rotations.shape[0]
        self.chunk, self.rounds = chunk, rounds
        place = torch.arange(tokens, device=x.device)
        z = torch.stack([x.detach() @ rotation.T for rotation in rotations], dim=2)
        hashes = torch.cat([z, -z], dim=-1).argmax(dim=-1)  # (B, H, R, N)
        if key_mask is not None:
            hashes = torch.where(key_mask[:, None, None], hashes, 2 * rotations.shape[1])
        self.order = (hashes * tokens + place).argsort(dim=-1)
        self.rank = self.order.argsort(dim=-1)
        self._find_meetings(key_mask)

    def _find_meetings(self, key_mask: Tensor | None) -> None:
        own = self.rank // self.chunk  # (B, H, R, N)
        chunks = self.take(own.transpose(2, 3))  # the chunks in all rounds, (..., m, R)
        context = self.with_previous(chunks)
        behind = chunks[..., :, None, :] - context[..., None, :, :]
        kept = (
            torch.ones_like(own[:, :, 0])
            if key_mask is None
            else (key_mask[:, None].long().expand_as(own[:, :, 0]))
        )
        is_kept = self.with_previous(self.take(kept[..., None]))[..., 0] > 0
        token = torch.arange(own.shape[-1], device=own.device).expand_as(own[:, :, 0])
        itself = self.take(token[..., None]) == self.with_previous(self.take(token[..., None])).mT
        self.count = ((behind == 0) | (behind == 1)).sum(dim=-1)
        others = is_kept[..., None, :] & ~itself
        found = self.untake(others.sum(dim=-1, keepdim=True)).sum(dim=2)  # (B, H, N, 1)
        self.meets = others | (is_kept[..., None, :] & itself & (self.take(found) == 0))

    def take(self, x: Tensor) -> Tensor:
        """Sort in every round: (B, H, N, D) -> (B, H, R, C, m, D); missing places hold zeros."""
        index = self.order[..., None].expand(*self.order.shape, x.shape[-1])
        repeated = x[:, :, None].expand(-1, -1, self.rounds, -1, -1)
        return in_chunks(repeated.gather(3, index), self.chunk)

    def untake(self, x: Tensor) -> Tensor:
        """Undo the sorting: (B, H, R, C, m, D) -> (B, H, R, N, D)."""
        index = self.rank[..., None].expand(*self.rank.shape, x.shape[-1])
        return x.flatten(3, 4).gather(3, index)

    def with_previous(self, x: Tensor) -> Tensor:
        """Put the chunk before in front: (B, H, R, C, m, D) -> (B, H, R, C, 2 m, D)."""
        before = F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :, :-1]
        return torch.cat([before, x], dim=4)


@in_full_precision
def lsh_weights(
    x: Tensor,
    rotations: Tensor,
    *,
    chunk: int,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, N); rows are convex."""
    query = x.to(compute_dtype(x.dtype))
    if key_mask is not None:
        query = query.masked_fill(~key_mask[:, None, :, None], 0)
    met = meetings(query, rotations.to(query.dtype), chunk=chunk, key_mask=key_mask)
    met = select_queries(met, queries)
    chosen = resolve_scale(scale, x.shape[-1]) * select_queries(query, queries)
    scores = chosen @ F.normalize(query, dim=-1, eps=1e-12).mT
    scores = scores.masked_fill(~met, torch.finfo(query.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~met, 0).to(x.dtype)
