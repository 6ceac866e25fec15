"""Models: a vision transformer, a sequence transformer, and a table of named variants."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.models.config import SequenceConfig, TransformerConfig, ViTConfig
    from saccade.models.factory import FeatureExtractor, create_model, load_model
    from saccade.models.hub import clean_state_dict
    from saccade.models.sequence_transformer import SequenceTransformer
    from saccade.models.summary import ModelSummary, count_flops, model_summary
    from saccade.models.taylorshift import TaylorShiftTransformer, TaylorShiftViT
    from saccade.models.variants import MODELS, Variant, list_models, vit_sizes
    from saccade.models.vision_transformer import VisionTransformer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "config": ("SequenceConfig", "TransformerConfig", "ViTConfig"),
            "factory": ("FeatureExtractor", "create_model", "load_model"),
            "hub": ("clean_state_dict",),
            "sequence_transformer": ("SequenceTransformer",),
            "summary": ("ModelSummary", "count_flops", "model_summary"),
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
