"""A model to measure, with any attention and at any resolution or length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saccade.bench.clock import Call
from saccade.bench.model import model_pass
from saccade.bench.shapes import Pass
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.models import SequenceTransformer, VisionTransformer, create_model

__all__ = ["Facts", "Subject", "make_pass"]

Model = VisionTransformer | SequenceTransformer


@dataclass(frozen=True)
class Facts:
    """What the attention of a model sees at one size.

    Attributes:
        tokens: N, the class token included.
        heads: Number of heads of the first block, of width `head_dim`.
    """

    tokens: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class Subject:
    """A model, as a variant with changes.

    Attributes:
        name: What the user asked for: a recipe, a run folder or a variant.
        size: Its own side of an image in pixels, or its own length of a sequence.
        options: Options of attentions. Each attention gets those that it has.
        overrides: Other fields of the variant that are changed.
    """

    name: str
    model: str
    attention: str
    size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    is_sequence: bool = False

    @property
    def unit(self) -> str:
        """Unit of the size."""
        return "positions" if self.is_sequence else "px"

    def build(self, attention: str | None = None, size: int | None = None) -> Model:
        """A newly initialized model.

        Raises:
            ConfigError: The model does not exist at that size or with that attention.
        """
        name = self.attention if attention is None else attention
        key = "max_seq_len" if self.is_sequence else "img_size"
        own = {k: v for k, v in self.options.items() if k in ATTENTIONS[name].options}
        changes: dict[str, Any] = {**self.overrides, key: self.size if size is None else size}
        if own:
            changes["attention_options"] = own
        model = create_model(self.model, attention=name, **changes)
        assert isinstance(model, VisionTransformer | SequenceTransformer)
        return model

    def facts(self, size: int | None = None) -> Facts:
        """Tokens and heads at a size; allocates no memory."""
        with torch.device("meta"):
            model = self.build(size=size)
        if isinstance(model, SequenceTransformer):
            tokens = model.max_seq_len
        else:
            tokens = model.patch_embed.num_patches
        core = model.blocks[0].attn.core
        return Facts(tokens + model.num_prefix_tokens, core.num_heads, core.head_dim)

    def sizes(self, factors: tuple[float, ...]) -> list[int]:
        """The own size times these factors, where the model can be built."""
        found = []
        for factor in factors:
            size = round(self.size * factor)
            try:
                self.facts(size)
            except ConfigError:
                continue
            found.append(size)
        return sorted(set(found))

    def inputs(self, model: Model, batch: int, device: torch.device) -> Tensor:
        """A random batch for a model of `build`."""
        if isinstance(model, SequenceTransformer):
            config, length = model.config, model.max_seq_len
            if config.embedding == "token":
                return torch.randint(config.input_dim, (batch, length), device=device)
            return torch.randn(batch, length, config.input_dim, device=device)
        height, width = model.patch_embed.img_size
        return torch.randn(batch, model.config.in_chans, height, width, device=device)


def make_pass(
    subject: Subject,
    attention: str,
    size: int,
    batch: int,
    direction: Pass,
    device: torch.device,
    *,
    autocast: bool,
    optimizer: bool,
) -> Call:
    """A function without arguments that runs one pass of a new model over a random batch.

    With `optimizer`, a training pass ends with a step of AdamW, which needs more memory.
    """
    torch.manual_seed(0)
    model = subject.build(attention, size).to(device)
    x = subject.inputs(model, batch, device)
    steps = torch.optim.AdamW(model.parameters(), lr=1e-4) if optimizer else None
    return model_pass(model, x, direction, autocast=autocast, optimizer=steps)
