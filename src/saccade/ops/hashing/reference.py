"""The equation of LSH attention: softmax over the pairs of tokens that meet in some round.

In round r, token i has the hash h_r(i) = argmax(R_r x_i, -R_r x_i). Sorted by hash, and by position
among equal hashes, tokens are cut into chunks of m; c_r(i) is the chunk of token i. Token i meets j
if c_r(j) = c_r(i) or c_r(j) = c_r(i) - 1 in some round, and itself only if it meets no other.
"""

import torch
from torch import Tensor

__all__ = ["chunks_of", "lsh_reference", "meetings"]


def chunks_of(x: Tensor, rotation: Tensor, chunk: int, key_mask: Tensor | None) -> Tensor:
    """The chunk of each token in one round, (B, H, N); masked tokens come last."""
    tokens = x.shape[2]
    z = torch.einsum("bhnd,kd->bhnk", x, rotation)
    hashes = torch.cat([z, -z], dim=-1).argmax(dim=-1)
    if key_mask is not None:
        hashes = torch.where(key_mask[:, None], hashes, 2 * rotation.shape[0])
    order = (hashes * tokens + torch.arange(tokens, device=x.device)).argsort(dim=-1)
    return order.argsort(dim=-1) // chunk


def meetings(x: Tensor, rotations: Tensor, *, chunk: int, key_mask: Tensor | None = None) -> Tensor:
    """True where token i meets token j: (B, H, N, N). Masked tokens meet all tokens."""
    tokens = x.shape[2]
    pairs = torch.zeros(*x.shape[:3], tokens, dtype=torch.bool, device=x.device)
    for rotation in rotations:
        own = chunks_of(x.detach(), rotation, chunk, key_mask)
        behind = own[..., :, None] - own[..., None, :]
        pairs = pairs | (behind == 0) | (behind == 1)
    if key_mask is not None:
        pairs = (pairs | ~key_mask[:, None, :, None]) & key_mask[:, None, None, :]
    itself = torch.eye(tokens, dtype=torch.bool, device=x.device)
    is_alone = ~(pairs & ~itself).any(dim=-1, keepdim=True)
    return pairs & (~itself | is_alone)


def lsh_reference(
    x: Tensor,
    v: Tensor,
    rotations: Tensor,
    *,
    chunk: int,
    scale: float,
    key_mask: Tensor | None = None,
) -> Tensor:
    """softmax over met tokens of scale x_i.x_j / |x_j|, times v: (B, H, N, D) -> (B, H, N, E).

    A masked token attends to all others equally.

    Args:
        x: Shared queries and keys (B, H, N, D).
        v: Values (B, H, N, E).
        rotations: (rounds, buckets / 2, D).
        chunk: Tokens of a chunk m.
        scale: Factor of the scores.
        key_mask: (B, N), True = attend.
    """
    met = meetings(x, rotations, chunk=chunk, key_mask=key_mask)
    keys = x / (x**2).sum(dim=-1, keepdim=True).sqrt()
    scores = scale * torch.einsum("bhid,bhjd->bhij", x, keys)
    if key_mask is not None:
        scores = torch.where(key_mask[:, None, :, None], scores, torch.zeros_like(scores))
    scores = scores.masked_fill(~met, torch.finfo(x.dtype).min)
    weights = torch.softmax(scores, dim=-1).masked_fill(~met, 0)
    return torch.einsum("bhij,bhje->bhie", weights, v)
