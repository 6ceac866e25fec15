"""Softmax attention among tokens whose hashes are alike (Reformer)."""

from saccade.ops.hashing.attention import lsh_attention, lsh_weights

__all__ = ["lsh_attention", "lsh_weights"]
