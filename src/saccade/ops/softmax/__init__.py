"""Softmax attention, the baseline."""

from saccade.ops.softmax.attention import (
    packed_softmax_attention,
    softmax_attention,
    softmax_weights,
)

__all__ = ["packed_softmax_attention", "softmax_attention", "softmax_weights"]
