"""Taylor-softmax attention: one function with two algorithms."""

from saccade.ops.taylor.attention import (
    Algorithm,
    check_coefficients,
    output_factor,
    packed_taylor_attention,
    taylor_attention,
    taylor_weights,
    taylorshift_attention,
    unit_rows,
)
from saccade.ops.taylor.choice import Choice, explain_choice
from saccade.ops.taylor.features import num_features
from saccade.ops.taylor.thresholds import memory_threshold, speed_threshold

__all__ = [
    "Algorithm",
    "Choice",
    "check_coefficients",
    "explain_choice",
    "memory_threshold",
    "num_features",
    "output_factor",
    "packed_taylor_attention",
    "speed_threshold",
    "taylor_attention",
    "taylor_weights",
    "taylorshift_attention",
    "unit_rows",
]
