"""Models: one vision transformer, one sequence transformer, and the table of named variants."""

from saccade.models.config import SequenceConfig, TransformerConfig, ViTConfig
from saccade.models.factory import create_model, list_models, load_model
from saccade.models.flops import count_flops
from saccade.models.hub import clean_state_dict
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.summary import ModelSummary, model_summary
from saccade.models.taylorshift import TaylorShiftTransformer, TaylorShiftViT
from saccade.models.variants import MODELS, Variant, vit_sizes
from saccade.models.vision_transformer import VisionTransformer

__all__ = [
    "MODELS",
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
