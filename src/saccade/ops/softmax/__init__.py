"""Softmax attention, the baseline."""

from saccade.ops.softmax.attention import softmax_attention, softmax_weights

__all__ = ["softmax_attention", "softmax_weights"]
