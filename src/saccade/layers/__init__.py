"""Modules that own parameters: attention with interchangeable cores, and the parts around it."""

from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import (
    ATTENTIONS,
    Attention,
    create_core,
    list_attentions,
    register_attention,
)
from saccade.layers.cores import AttentionCore
from saccade.layers.taylorshift import TaylorShiftAttention

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionCore",
    "MultiHeadAttention",
    "TaylorShiftAttention",
    "create_core",
    "list_attentions",
    "register_attention",
]
