"""Softmax attention among tokens with equal hashes (Reformer)."""

from saccade.ops.hashing.attention import lsh_attention, lsh_weights

__all__ = ["lsh_attention", "lsh_weights"]
