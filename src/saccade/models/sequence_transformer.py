"""The transformer encoder for sequences, with exchangeable attention and embedding.

embedding -> class token -> + positions -> blocks -> norm -> pooling -> head. With a padding mask, a
padded sequence gives the output of the unpadded one. Input layout: (B, N, features), or (B, N)
symbols.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.positions import resample_line_positions, sinusoidal_1d
from saccade.layers.residual import add
from saccade.layers.sequence_embeddings import build_sequence_embedding
from saccade.models.config import SequenceConfig, TransformerConfig, override
from saccade.models.transformer import Transformer

__all__ = ["SequenceTransformer"]


class SequenceTransformer(Transformer):
    """A transformer over a sequence of vectors or symbols.

    Args:
        max_seq_len: Maximum sequence length.
        input_dim: Features of a token, or size of the vocabulary for `embedding="token"`.
        name: Name of the variant, for the saved config.
        **options: Any other field of `SequenceConfig`.
    """

    architecture = "SequenceTransformer"
    config_class = SequenceConfig
    config: SequenceConfig

    def __init__(
        self, max_seq_len: int, input_dim: int, *, name: str | None = None, **options: Any
    ) -> None:
        lengths = {"max_seq_len": max_seq_len, "input_dim": input_dim}
        config = override(SequenceConfig(), lengths | options)
        super().__init__(config, name)
        self.token_embed = build_sequence_embedding(config.embedding, input_dim, config.embed_dim)
        self.set_positions(self._new_positions(max_seq_len))
        self._init_weights()

    @classmethod
    def from_config(cls, config: TransformerConfig, name: str | None = None) -> Self:
        """Build a model from its config; subclasses return the base class as well."""
        assert isinstance(config, SequenceConfig)
        options = {spec.name: getattr(config, spec.name) for spec in fields(config)}
        return SequenceTransformer(name=name, **options)  # type: ignore[return-value]

    def _new_positions(self, max_seq_len: int) -> Tensor:
        length = self.num_prefix_positions + max_seq_len
        if self.config.pos_embed == "sinusoidal_1d":
            return sinusoidal_1d(length, self.embed_dim)
        return torch.zeros(1, length, self.embed_dim)

    @property
    def max_seq_len(self) -> int:
        """Maximum sequence length. Setting it changes the table of positions."""
        return self.config.max_seq_len

    @max_seq_len.setter
    def max_seq_len(self, length: int) -> None:
        self.config = replace(self.config, max_seq_len=length)
        if isinstance(self.pos_embed, torch.nn.Parameter):
            table = self.pos_embed.detach()
            self.set_positions(resample_line_positions(table, length, self.num_prefix_positions))
        elif self.pos_embed is not None:
            self.set_positions(self._new_positions(length).to(self.pos_embed))
        self.resize_attentions()

    def embed(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Tokens (B, N, C) with class token and positions."""
        if x.dim() > 1 and x.shape[1] > self.max_seq_len:
            raise ConfigError(
                f"x must have at most max_seq_len={self.max_seq_len} tokens, got {x.shape[1]}; "
                f"model.max_seq_len = {x.shape[1]} raises the limit"
            )
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != x.shape[:2]):
            raise ConfigError(
                f"key_mask must be bool of shape {tuple(x.shape[:2])}, True for real tokens, got "
                f"{key_mask.dtype} of shape {tuple(key_mask.shape)}"
            )
        x = self.token_embed(x, key_mask)
        table = self.pos_embed
        if table is not None:
            table = table[:, : self.num_prefix_positions + x.shape[1]]
        out: Tensor = self.pos_drop(self.add_positions(x, table))
        return out

    def _full_mask(self, key_mask: Tensor | None) -> Tensor | None:
        """The mask with a True for the class token in front."""
        if key_mask is None:
            return None
        return F.pad(key_mask, (self.num_prefix_tokens, 0), value=True)

    def _known_mask(self, x: Tensor, key_mask: Tensor | None) -> Tensor | None:
        """The given mask, else that of the symbols that are not `pad_symbol`."""
        pad = self.config.pad_symbol
        return x != pad if key_mask is None and pad is not None else key_mask

    def forward_features(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Tokens (B, N, C) after the last block and its norm.

        Args:
            x: (B, N, input_dim) numbers, or (B, N) symbols for `embedding="token"`.
            key_mask: (B, N), True for real tokens, False for padding; None masks `pad_symbol`.
        """
        key_mask = self._known_mask(x, key_mask)
        grid = None if self.config.local_conv is None else (1, x.shape[1])
        stream = self.run_blocks(self.embed(x, key_mask), self._full_mask(key_mask), grid)
        out: Tensor = self.norm(add(*stream))
        return out

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Logits (B, classes); arguments as for `forward_features`."""
        key_mask = self._known_mask(x, key_mask)
        features = self.forward_features(x, key_mask)
        return self.forward_head(features, key_mask=self._full_mask(key_mask))
