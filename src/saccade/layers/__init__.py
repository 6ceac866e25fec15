"""Modules that own parameters: attention with interchangeable cores, and the parts around it."""

from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import (
    ATTENTIONS,
    Attention,
    create_core,
    list_attentions,
    register_attention,
)
from saccade.layers.block import Block, DropPath, LayerScale
from saccade.layers.cores import AttentionCore
from saccade.layers.head import MlpHead
from saccade.layers.mlp import Mlp
from saccade.layers.pooling import AttentionPool
from saccade.layers.stems import Stem, build_stem
from saccade.layers.taylorshift import TaylorShiftAttention

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionCore",
    "AttentionPool",
    "Block",
    "DropPath",
    "LayerScale",
    "Mlp",
    "MlpHead",
    "MultiHeadAttention",
    "Stem",
    "TaylorShiftAttention",
    "build_stem",
    "create_core",
    "list_attentions",
    "register_attention",
]
