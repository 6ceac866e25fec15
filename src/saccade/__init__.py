"""saccade: vision transformers whose attention can be swapped.

Importing the package is cheap: torch is loaded when a name that needs it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from saccade.version import __version__

if TYPE_CHECKING:
    from saccade.layers import (
        MultiHeadAttention,
        TaylorShiftAttention,
        list_attentions,
    )
    from saccade.models import (
        SequenceTransformer,
        TaylorShiftTransformer,
        TaylorShiftViT,
        VisionTransformer,
        create_model,
        list_models,
        model_summary,
        vit_sizes,
    )
    from saccade.ops import (
        attention_weights,
        linear_attention,
        softmax_attention,
        taylor_attention,
    )

__all__ = [
    "MultiHeadAttention",
    "SequenceTransformer",
    "TaylorShiftAttention",
    "TaylorShiftTransformer",
    "TaylorShiftViT",
    "VisionTransformer",
    "__version__",
    "attention_weights",
    "create_model",
    "linear_attention",
    "list_attentions",
    "list_models",
    "model_summary",
    "softmax_attention",
    "taylor_attention",
    "vit_sizes",
]

_HOME = {
    "MultiHeadAttention": "layers",
    "SequenceTransformer": "models",
    "TaylorShiftAttention": "layers",
    "TaylorShiftTransformer": "models",
    "TaylorShiftViT": "models",
    "VisionTransformer": "models",
    "attention_weights": "ops",
    "create_model": "models",
    "linear_attention": "ops",
    "list_attentions": "layers",
    "list_models": "models",
    "model_summary": "models",
    "softmax_attention": "ops",
    "taylor_attention": "ops",
    "vit_sizes": "models",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"saccade.{_HOME[name]}"), name)
    raise AttributeError(f"module 'saccade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
