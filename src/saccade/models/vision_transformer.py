"""The vision transformer (arXiv:2010.11929) with exchangeable parts.

stem -> class token -> + positions -> blocks -> norm -> pooling -> head. Every part is chosen by
`ViTConfig`; there is no other image model here. Layout (B, channels, height, width) to logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.positions import resample_grid_positions, sinusoidal_1d, sinusoidal_2d
from saccade.layers.residual import add
from saccade.layers.stems import build_stem
from saccade.models.config import TransformerConfig, ViTConfig, override
from saccade.models.transformer import Transformer

__all__ = ["VisionTransformer"]

Features = Tensor | tuple[Tensor, Tensor]


class VisionTransformer(Transformer):
    """A transformer over the tokens of an image.

    Args:
        config: All that the model is made of.
        name: Name of the variant, for the saved config.
    """

    architecture = "VisionTransformer"
    config_class = ViTConfig
    config: ViTConfig

    def __init__(self, config: ViTConfig, name: str | None = None) -> None:
        super().__init__(config, name)
        self.patch_embed = build_stem(
            config.stem,
            config.img_size,
            config.in_chans,
            config.embed_dim,
            config.patch_size,
            config.act,
            config.stem_dim,
        )
        self.set_positions(self._new_positions())
        self._init_weights()

    @classmethod
    def from_config(cls, config: TransformerConfig, name: str | None = None) -> Self:
        """Build a model from its config; subclasses with another constructor give the base."""
        assert isinstance(config, ViTConfig)
        return VisionTransformer(config, name)  # type: ignore[return-value]

    def _new_positions(self) -> Tensor:
        """A table for the present grid: sinusoids, or zeros to be learned from."""
        prefix, dim = self.num_prefix_tokens, self.embed_dim
        length = prefix + self.patch_embed.num_patches
        if self.config.pos_embed == "sinusoidal_1d":
            return sinusoidal_1d(length, dim)
        if self.config.pos_embed == "sinusoidal_2d":
            return sinusoidal_2d(self.patch_embed.grid_size, dim, prefix)
        return torch.zeros(1, length, dim)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Accept images of another size from now on.

        Learned positions are resampled (bicubic, antialiased, as timm does); sinusoids are
        computed for the new grid.

        Args:
            img_size: Height and width; one integer for both.
        """
        config = override(self.config, {"img_size": img_size})
        old_grid = self.patch_embed.grid_size
        self.patch_embed.set_input_size(config.img_size)
        self.config = config
        if self.pos_embed is None:
            return
        if isinstance(self.pos_embed, torch.nn.Parameter):
            table = resample_grid_positions(
                self.pos_embed.detach(),
                old_grid,
                self.patch_embed.grid_size,
                self.num_prefix_tokens,
            )
        else:
            table = self._new_positions().to(self.pos_embed)
        self.set_positions(table)

    def embed(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of images, with class token and positions."""
        return self.part(_embed, self.pos_drop)(self, x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) after the last block and its norm."""
        stream = self.run_blocks(self.embed(x), grid=self.patch_embed.grid_size)
        out: Tensor = self.norm(add(*stream))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, in_chans, height, width)."""
        if not self.is_compiled:
            return self.forward_head(self.forward_features(x))
        stream = self.run_blocks(self.embed(x), grid=self.patch_embed.grid_size)
        classify = self.part(_classify, self.norm, self.fc_norm, self.head_drop, self.head)
        return classify(self, *stream)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        *,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Features] | tuple[Tensor, list[Features]]:
        """The tokens after chosen blocks, and the final ones.

        Args:
            x: Images (B, in_chans, height, width).
            indices: The last n blocks for an integer, those blocks for a sequence, all for None.
            return_prefix_tokens: Whether each entry becomes (patch tokens, prefix tokens).
            norm: Whether the final norm is applied to each.
            stop_early: Whether to leave out the blocks after the last one asked for.
            output_fmt: Patch tokens as a map (B, C, rows, columns) or a sequence (B, N, C).
            intermediates_only: Whether to leave out the final tokens.

        Returns:
            (final tokens, intermediates), or only the latter.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ConfigError(f"output_fmt={output_fmt!r}: expected 'NCHW' or 'NLC'")
        wanted = self._block_indices(indices)
        last = max(wanted) if stop_early else len(self.blocks) - 1
        kept: list[Features] = []
        x = self.embed(x)
        for index in range(last + 1):
            x = self.run_block(self.blocks[index], x, grid=self.patch_embed.grid_size)
            if index in wanted:
                tokens = self.norm(x) if norm else x
                kept.append(self._split(tokens, output_fmt, return_prefix_tokens))
        return kept if intermediates_only else (self.norm(x), kept)

    def _block_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        depth = len(self.blocks)
        if indices is None:
            return list(range(depth))
        asked = range(-indices, 0) if isinstance(indices, int) else indices
        if not asked or not all(-depth <= index < depth for index in asked):
            raise ConfigError(f"indices={indices!r}: the model has blocks 0 to {depth - 1}")
        return sorted({index % depth for index in asked})

    def _split(self, tokens: Tensor, output_fmt: str, with_prefix: bool) -> Features:
        prefix, patches = tokens.tensor_split([self.num_prefix_tokens], dim=1)
        if output_fmt == "NCHW":
            rows, columns = self.patch_embed.grid_size
            patches = patches.transpose(1, 2).reshape(len(tokens), -1, rows, columns)
        return (patches, prefix) if with_prefix and self.num_prefix_tokens else patches


def _embed(model: VisionTransformer, x: Tensor) -> Tensor:
    x = model.add_class_token(model.patch_embed(x))
    if model.pos_embed is not None:
        x = x + model.pos_embed
    out: Tensor = model.pos_drop(x)
    return out


def _classify(
    model: VisionTransformer, x: Tensor, branch: Tensor | None, keep: Tensor | None
) -> Tensor:
    return model.forward_head(model.norm(add(x, branch, keep)))
