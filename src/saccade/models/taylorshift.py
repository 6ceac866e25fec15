"""The model classes of TaylorShift (arXiv:2403.02920) under the names its users know.

They are constructors only: the models are `VisionTransformer` and `SequenceTransformer` with
`taylorshift` attention, and so is what their `from_pretrained` returns. N0 starts from the paper's
threshold; the named variants follow the library's own, which counts symmetric features.
"""

from __future__ import annotations

from typing import Any

from saccade.models.config import ViTConfig, override
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.vision_transformer import VisionTransformer
from saccade.ops.taylor import speed_threshold

__all__ = ["TaylorShiftTransformer", "TaylorShiftViT"]


def with_paper_threshold(options: dict[str, Any]) -> dict[str, Any]:
    """`options` with TaylorShift and the paper's N0, unless they name another attention or N0."""
    if "attention" in options:
        return options
    head_dim = options.get("head_dim") or options["embed_dim"] // max(1, options["num_heads"])
    threshold = {"N0": speed_threshold(max(1, head_dim))}
    given = options.get("attention_options", {})
    return options | {"attention": "taylorshift", "attention_options": threshold | given}


class TaylorShiftViT(VisionTransformer):
    """A vision transformer with TaylorShift attention.

    Args:
        image_size: Side of the images, or (height, width).
        num_classes: Number of logits.
        patch_size: Side of a patch.
        embed_dim: Width; `vit_sizes` has the paper's.
        depth: Number of blocks.
        num_heads: Heads.
        conv_embed: Whether convolutions embed the patches, as in XCiT.
        **options: Any other field of `ViTConfig`.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int],
        num_classes: int = 1000,
        patch_size: int = 16,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        conv_embed: bool = False,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}
        images = {"img_size": image_size, "patch_size": patch_size, "num_classes": num_classes}
        stem = {"stem": "conv_patch" if conv_embed else "patch"}
        config = override(ViTConfig(), stem | images | with_paper_threshold(sizes | options))
        super().__init__(config)


class TaylorShiftTransformer(SequenceTransformer):
    """A sequence transformer with TaylorShift attention.

    Args:
        max_seq_len: Longest sequence that the positions cover.
        input_dim: Features of a token.
        num_classes: Number of logits.
        num_heads: Heads.
        depth: Number of blocks.
        embed_dim: Width.
        conv_embed: Whether convolutions embed the tokens.
        **options: Any other field of `SequenceConfig`.
    """

    def __init__(
        self,
        max_seq_len: int,
        input_dim: int,
        num_classes: int = 1000,
        num_heads: int = 8,
        depth: int = 6,
        embed_dim: int = 256,
        conv_embed: bool = False,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"embed_dim": embed_dim, "depth": depth, "num_heads": num_heads}
        kind = {"embedding": "conv" if conv_embed else "linear", "num_classes": num_classes}
        super().__init__(max_seq_len, input_dim, **(kind | with_paper_threshold(sizes | options)))
