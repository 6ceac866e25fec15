"""Which algorithm a Taylor attention is exported with: quadratic or linear in the tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple

from saccade.errors import ConfigError
from saccade.export.options import Algorithm
from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS
from saccade.models.transformer import Transformer
from saccade.models.vision_transformer import VisionTransformer

__all__ = ["AlgorithmChoice", "choose_algorithm", "num_tokens", "set_algorithm"]

# Tokens from which the linear graph is faster than the quadratic one in ONNX Runtime, two threads,
# by head dim (results/export/, docs/log.md); 128 is extrapolated by FLOPs.
_CROSSOVERS = {8: 160, 16: 288, 32: 960, 64: 3072, 128: 11000}


class AlgorithmChoice(NamedTuple):
    """An algorithm and the reason for it; `algorithm` is empty where an attention has only one."""

    algorithm: Literal["", "direct", "efficient"]
    reason: str

    @property
    def told(self) -> str:
        """The algorithm and the reason for the user; empty where there is no choice."""
        return f"{self.algorithm}: {self.reason}" if self.algorithm else ""


def choose_algorithm(model: Transformer, asked: Algorithm) -> AlgorithmChoice:
    """The algorithm to export a model's attention with."""
    name = model.config.attention
    if "algorithm" not in ATTENTIONS[name].options:
        if asked != "auto":
            raise ConfigError(
                f"algorithm must be 'auto' for attention {name!r}, which has only one, got "
                f"{asked!r}"
            )
        return AlgorithmChoice("", f"attention {name!r} has one algorithm")
    if asked != "auto":
        return AlgorithmChoice(asked, "as asked for")
    head_dim, tokens = model.blocks[0].attn.head_dim, num_tokens(model)
    width = next((known for known in _CROSSOVERS if head_dim <= known), max(_CROSSOVERS))
    crossover = _CROSSOVERS[width]
    is_efficient = tokens > crossover
    return AlgorithmChoice(
        "efficient" if is_efficient else "direct",
        f"{tokens} tokens {'>' if is_efficient else '<='} {crossover}, from where on linear time "
        f"is faster in ONNX Runtime at head dim {head_dim}",
    )


def num_tokens(model: Transformer) -> int:
    """Keys that a token attends to: those of its window, or of the whole input."""
    if not isinstance(model, VisionTransformer):
        return int(model.config.max_seq_len) + model.num_prefix_tokens  # type: ignore[attr-defined]
    rows, columns = model.patch_embed.grid_size
    window = model.blocks[0].attn.window
    if window is not None:
        rows, columns = min(rows, window[0]), min(columns, window[1])
    return rows * columns + model.num_prefix_tokens


def set_algorithm(attn: MultiHeadAttention, choice: AlgorithmChoice) -> None:
    """Let an attention use the algorithm; without dropout, which would force the quadratic one."""
    attn.core.attn_drop = 0.0
    if choice.algorithm:
        attn.core.algorithm = choice.algorithm  # type: ignore[assignment]
