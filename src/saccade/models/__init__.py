"""Models: a vision transformer, a sequence transformer, and a table of named variants."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.models.config import SequenceConfig, TransformerConfig, ViTConfig
    from saccade.models.factory import create_model, load_model
    from saccade.models.features import FeatureExtractor
    from saccade.models.flops import count_flops
    from saccade.models.hub import clean_state_dict
    from saccade.models.sequence_transformer import SequenceTransformer
    from saccade.models.summary import ModelSummary, model_summary
    from saccade.models.taylorshift import TaylorShiftTransformer, TaylorShiftViT
    from saccade.models.variants import MODELS, Variant, list_models, vit_sizes
    from saccade.models.vision_transformer import VisionTransformer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "config": ("SequenceConfig", "TransformerConfig", "ViTConfig"),
            "factory": ("create_model", "load_model"),
            "features": ("FeatureExtractor",),
            "flops": ("count_flops",),
            "hub": ("clean_state_dict",),
            "sequence_transformer": ("SequenceTransformer",),
            "summary": ("ModelSummary", "model_summary"),
            "taylorshift": ("TaylorShiftTransformer", "TaylorShiftViT"),
            "variants": ("MODELS", "Variant", "list_models", "vit_sizes"),
            "vision_transformer": ("VisionTransformer",),
        },
    )

__all__ = [
    "MODELS",
    "FeatureExtractor",
    "ModelSummary",
    "SequenceConfig",
    "SequenceTransformer",
    "TaylorShiftTransformer",
    "TaylorShiftViT",
    "TransformerConfig",
    "Variant",
    "ViTConfig",
    "VisionTransformer",
    "clean_state_dict",
    "count_flops",
    "create_model",
    "list_models",
    "load_model",
    "model_summary",
    "vit_sizes",
]
