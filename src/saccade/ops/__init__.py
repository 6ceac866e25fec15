"""Functions on tensors (B, H, N, D): all attentions, without parameters."""

from saccade.ops.linear import linear_attention
from saccade.ops.softmax import softmax_attention
from saccade.ops.taylor import taylor_attention
from saccade.ops.weights import attention_weights

__all__ = ["attention_weights", "linear_attention", "softmax_attention", "taylor_attention"]
