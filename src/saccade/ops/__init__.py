"""Pure tensor functions on (B, H, N, D): attention in every form this library knows."""

from saccade.ops.linear import linear_attention
from saccade.ops.softmax import softmax_attention
from saccade.ops.taylor import taylor_attention
from saccade.ops.weights import attention_weights

__all__ = ["attention_weights", "linear_attention", "softmax_attention", "taylor_attention"]
