"""Limits on the size of a model, checked before memory is allocated.

Without them, a typing error or a malicious `config.json` could fill the memory or take hours to
build. The limits are far above every model of saccade; environment variables change them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from saccade.errors import ConfigError
from saccade.layers.attentions import ATTENTIONS

if TYPE_CHECKING:
    from saccade.models.config import SequenceConfig, TransformerConfig, ViTConfig

__all__ = ["check_size", "count_tokens", "estimate_parameters"]

LIMITS = {"SACCADE_MAX_PARAMETERS": 4_000_000_000, "SACCADE_MAX_DEPTH": 10_000}
"""Default limits, keyed by the environment variable that overrides each."""


def check_size(config: TransformerConfig) -> None:
    """Check the number of blocks and the estimated number of parameters.

    Raises:
        ConfigError: The model is too large. The message names its size and how to raise the limit.
    """
    most = _limit("SACCADE_MAX_DEPTH")
    if config.depth > most:
        raise ConfigError(
            f"depth must be at most {most:,}, got {_shown(config.depth)}; the environment variable "
            "SACCADE_MAX_DEPTH raises the limit"
        )
    count, most = estimate_parameters(config), _limit("SACCADE_MAX_PARAMETERS")
    if count > most:
        sizes = ", ".join(f"{name}={_shown(size)}" for name, size in _sizes(config).items())
        raise ConfigError(
            f"the model must have at most {most:,} parameters, got about {_shown(count)} from "
            f"{sizes}; the environment variable SACCADE_MAX_PARAMETERS raises the limit"
        )


def estimate_parameters(config: TransformerConfig) -> int:
    """Estimate the parameters and table entries of a model without building it.

    Norms and biases are not counted.
    """
    dim, hidden = config.embed_dim, _mlp_features(config)
    head_dim = config.head_dim or max(1, dim // config.num_heads)
    inner = config.num_heads * head_dim
    block = 4 * dim * inner + inner * (config.local_conv or 0) ** 2
    block += 2 * dim * hidden + _attention_parameters(config, head_dim)
    head = dim * config.num_classes
    if config.head_hidden_dim is not None:
        head = config.head_hidden_dim * (dim + config.num_classes)
    pool = 4 * dim * dim + 2 * dim * hidden if config.global_pool == "map" else 0
    tokens, embedding = _embedding(config)
    positions = 0 if config.pos_embed == "none" else tokens * dim
    return embedding + positions + config.depth * block + pool + head


def count_tokens(config: TransformerConfig) -> int:
    """The largest number of tokens of an input, with the class token."""
    return _embedding(config)[0]


def _mlp_features(config: TransformerConfig) -> int:
    """`config.mlp_features`, also for integers that are too large for a float."""
    if config.mlp_hidden_dim is not None:
        return config.mlp_hidden_dim
    return int(min(min(config.embed_dim, 10**18) * config.mlp_ratio, 1e30))


def _attention_parameters(config: TransformerConfig, head_dim: int) -> int:
    """Entries of a block's random or learned feature projections, if its options set a size."""
    features, hidden = (
        size if isinstance(size := config.attention_options.get(name), int) else 0
        for name in ("num_features", "hidden")
    )
    projections = features * head_dim + hidden * (head_dim + features)
    if config.attention not in ATTENTIONS or not ATTENTIONS[config.attention].fixed_length:
        return projections
    longest = _whole(config.attention_options.get("max_tokens")) or count_tokens(config)
    rank = _whole(config.attention_options.get("rank")) or min(256, max(1, longest // 4))
    return projections + 2 * rank * longest


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _embedding(config: TransformerConfig) -> tuple[int, int]:
    """Number of tokens of an input, and parameters of the embedding."""
    from saccade.models.config import SequenceConfig, ViTConfig

    if isinstance(config, ViTConfig):
        height, width = config.img_size
        tokens = (height // config.patch_size) * (width // config.patch_size)
        return tokens + config.class_token, _stem_parameters(config)
    assert isinstance(config, SequenceConfig)
    return config.max_seq_len + config.class_token, _sequence_parameters(config)


def _sequence_parameters(config: SequenceConfig) -> int:
    own = config.embed_dim**2 if config.embedding.startswith("conv") else 0
    return config.input_dim * config.embed_dim + 3 * own


def _stem_parameters(config: ViTConfig) -> int:
    dim, side = config.embed_dim, config.patch_size
    if config.stem.startswith("patch"):
        return config.in_chans * side**2 * dim
    first = config.stem_dim or max(1, dim // 2)
    pairs = 24 if config.stem == "conv_residual" else 0
    return 9 * config.in_chans * first + (6 + pairs) * max(dim, first) ** 2


def _sizes(config: TransformerConfig) -> dict[str, int]:
    """The fields that determine the size of the model."""
    names = ("embed_dim", "depth", "num_heads", "head_dim", "mlp_hidden_dim", "head_hidden_dim")
    more = ("num_classes", "in_chans", "patch_size", "stem_dim", "max_seq_len", "input_dim")
    sizes = {name: getattr(config, name, None) for name in (*names, *more)}
    for axis, side in zip(("height", "width"), getattr(config, "img_size", ()), strict=False):
        sizes[f"image {axis}"] = side
    options = {name: config.attention_options.get(name) for name in ("num_features", "hidden")}
    return {name: size for name, size in (sizes | options).items() if isinstance(size, int)}


def _limit(variable: str) -> int:
    """The limit set by the environment variable, or the default."""
    text = os.environ.get(variable, "")
    try:
        return int(float(text)) if text else LIMITS[variable]
    except (ValueError, OverflowError):
        raise ConfigError(f"{variable} must be a number such as 1e10, got {text!r}") from None


def _shown(number: int) -> str:
    return (
        f"{number:,}" if number < 10**15 else f"over 10^{int((number.bit_length() - 1) * 0.30103)}"
    )
