"""saccade: vision transformers whose attention can be swapped.

Importing the package is cheap: torch is loaded when a name that needs it is first used.
"""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "layers": ("MultiHeadAttention", "TaylorShiftAttention", "list_attentions"),
            "models": (
                "SequenceTransformer",
                "TaylorShiftTransformer",
                "TaylorShiftViT",
                "VisionTransformer",
                "create_model",
                "list_models",
                "model_summary",
                "vit_sizes",
            ),
            "ops": (
                "attention_weights",
                "linear_attention",
                "softmax_attention",
                "taylor_attention",
            ),
        },
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
