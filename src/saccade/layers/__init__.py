"""Modules with parameters: attention with interchangeable cores, and the layers around it."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "attention": ("MultiHeadAttention",),
            "attentions": (
                "ATTENTIONS",
                "Attention",
                "create_core",
                "list_attentions",
                "register_attention",
            ),
            "block": ("Block", "DropPath", "LayerScale"),
            "cores": ("AttentionCore",),
            "head": ("MlpHead",),
            "mlp": ("Mlp",),
            "pooling": ("AttentionPool",),
            "stems": ("Stem", "build_stem"),
            "taylorshift": ("TaylorShiftAttention",),
        },
    )

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
