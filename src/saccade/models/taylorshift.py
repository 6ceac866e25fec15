"""The model classes of TaylorShift (arXiv:2403.02920) with their published names and arguments.

They only set arguments: the models are a `VisionTransformer` and a `SequenceTransformer` with
`taylorshift` attention, and their `from_pretrained` returns those classes. Defaults are the
published ones: no position for the class token, and N0 from the paper's threshold. The named
variants use saccade's own threshold, which counts symmetric features once.
"""

from __future__ import annotations

from typing import Any

from saccade.errors import ConfigError
from saccade.models.config import ViTConfig, override
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.vision_transformer import VisionTransformer
from saccade.ops.taylor import speed_threshold

__all__ = ["TaylorShiftTransformer", "TaylorShiftViT"]

_SIZES: dict[str, Any] = {"embed_dim": 768, "depth": 12, "num_heads": 12}


def _published(
    options: dict[str, Any],
    coefficients: tuple[float, float, float],
    normalize_input: bool,
    output_normalized: bool,
) -> dict[str, Any]:
    """Config fields: the published defaults, overridden by `options`.

    With another `attention`, the arguments of TaylorShift are left out. As published, `drop_rate`
    also sets the dropout of projections and MLPs.
    """
    dropout = {"proj_drop_rate": options["drop_rate"]} if "drop_rate" in options else {}
    chosen = _SIZES | {"no_embed_class": True, "attention": "taylorshift"} | dropout | options
    if chosen["attention"] != "taylorshift":
        return chosen
    head_dim = chosen.get("head_dim") or chosen["embed_dim"] // max(1, chosen["num_heads"])
    attention_options = {
        "N0": speed_threshold(max(1, head_dim)),
        "coefficients": coefficients,
        "normalize_input": normalize_input,
        "output_normalized": output_normalized,
    }
    return chosen | {"attention_options": attention_options | chosen.get("attention_options", {})}


class TaylorShiftViT(VisionTransformer):
    """A vision transformer with TaylorShift attention.

    Args:
        img_size: Side of the images, or (height, width).
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        normalize_input: As in `TaylorShiftAttention`.
        output_normalized: As in `TaylorShiftAttention`.
        conv_embed: Embed the patches with convolutions, as in XCiT.
        **options: Any other field of `ViTConfig`, such as `num_classes`, `patch_size` or a size
            from `vit_sizes`; the default size is ViT-B.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        a: float = 0.5,
        b: float = 1.0,
        c: float = 1.0,
        normalize_input: bool = True,
        output_normalized: bool = True,
        conv_embed: bool = False,
        **options: Any,
    ) -> None:
        stem = {"img_size": img_size, "stem": "conv_patch" if conv_embed else "patch"}
        chosen = _published(stem | options, (a, b, c), normalize_input, output_normalized)
        super().__init__(override(ViTConfig(), chosen))


class TaylorShiftTransformer(SequenceTransformer):
    """A sequence transformer with TaylorShift attention.

    Args:
        max_seq_len: Maximum sequence length.
        input_dim: Features of a token.
        conv_embed: Embed the tokens with convolutions.
        normalize_input: As in `TaylorShiftAttention`.
        a: Coefficient of s^2.
        b: Coefficient of s.
        c: Constant coefficient.
        output_normalized: As in `TaylorShiftAttention`.
        **options: Any other field of `SequenceConfig`, such as `num_classes` and `embed_dim`; the
            default size is ViT-B.
    """

    def __init__(
        self,
        max_seq_len: int,
        input_dim: int,
        conv_embed: bool = False,
        normalize_input: bool = True,
        *,
        a: float = 0.5,
        b: float = 1.0,
        c: float = 1.0,
        output_normalized: bool = True,
        **options: Any,
    ) -> None:
        for name, value in (("conv_embed", conv_embed), ("normalize_input", normalize_input)):
            if not isinstance(value, bool):
                raise ConfigError(
                    f"{name} must be True or False, got {value!r}; pass arguments after input_dim "
                    "by keyword, such as num_classes=10"
                )
        kind = {"embedding": "conv_pyramid" if conv_embed else "linear"}
        chosen = _published(kind | options, (a, b, c), normalize_input, output_normalized)
        super().__init__(max_seq_len, input_dim, **chosen)
