"""The vision transformer (arXiv:2010.11929) with exchangeable parts.

stem -> class token -> + positions -> blocks -> norm -> pooling -> head. `ViTConfig` selects every
part; all image models use this class. Input layout: (B, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.positions import resample_grid_positions, sinusoidal_1d, sinusoidal_2d
from saccade.layers.residual import add
from saccade.layers.stems import build_stem
from saccade.models.config import TransformerConfig, ViTConfig, override
from saccade.models.transformer import Transformer

__all__ = ["VisionTransformer"]

Features = Tensor | tuple[Tensor, Tensor]
Intermediates = list[Features] | tuple[Tensor, list[Features]] | dict[str, Any]


class VisionTransformer(Transformer):
    """A transformer over the patches of an image.

    Args:
        config: Configuration of the model.
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
        self.patch_embed.strict_img_size = not config.dynamic_img_size
        # read by timm's functions and by code written for its models
        self.has_class_token, self.num_reg_tokens, self.reg_token = config.class_token, 0, None
        self.no_embed_class = config.no_embed_class
        self.dynamic_img_size = config.dynamic_img_size
        self.set_positions(self._new_positions(self.patch_embed.grid_size))
        self._init_weights()

    @classmethod
    def from_config(cls, config: TransformerConfig, name: str | None = None) -> Self:
        """Build a model from its config; subclasses return the base class as well."""
        assert isinstance(config, ViTConfig)
        return VisionTransformer(config, name)  # type: ignore[return-value]

    def _new_positions(self, grid: tuple[int, int]) -> Tensor:
        """A new position table for a grid (rows, columns): sinusoids, or zeros if learned."""
        prefix, dim = self.num_prefix_positions, self.embed_dim
        length = prefix + grid[0] * grid[1]
        if self.config.pos_embed == "sinusoidal_1d":
            return sinusoidal_1d(length, dim)
        if self.config.pos_embed == "sinusoidal_2d":
            return sinusoidal_2d(grid, dim, prefix)
        return torch.zeros(1, length, dim)

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """The position table for a grid.

        Learned positions are resampled as in timm; sinusoids are computed for the grid.
        """
        if self.pos_embed is None or grid == self.patch_embed.grid_size:
            return self.pos_embed
        if isinstance(self.pos_embed, nn.Parameter):
            own = self.patch_embed.grid_size
            return resample_grid_positions(self.pos_embed, own, grid, self.num_prefix_positions)
        return self._new_positions(grid).to(self.pos_embed)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Change the size of the input images.

        Learned positions are resampled (bicubic, antialiased, as in timm); sinusoids are computed
        for the new grid.

        Args:
            img_size: Height and width; one integer for both.
        """
        config = override(self.config, {"img_size": img_size})
        table = self.positions(self.patch_embed.dynamic_feat_size(config.img_size))
        self.patch_embed.set_input_size(config.img_size)
        self.config = config
        if table is not None:
            self.set_positions(table.detach())
        self.resize_attentions()

    def embed(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of images, with class token and positions."""
        return self.part(_embed, self.pos_drop)(self, x)

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Tokens (B, N, C) after the last block and its norm.

        Args:
            x: Images (B, in_chans, height, width).
            attn_mask: As in `MultiHeadAttention`; N counts the class token.
            is_causal: Let a token attend only to itself and earlier tokens; softmax only.
        """
        tokens = self.embed(x)
        mask = _combined_mask(tokens, attn_mask, is_causal)
        stream = self.run_blocks(tokens, grid=self._grid(x), attn_mask=mask)
        out: Tensor = self.norm(add(*stream))
        return out

    def _grid(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of the token grid of images."""
        return self.patch_embed.dynamic_feat_size((x.shape[2], x.shape[3]))

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Logits (B, classes) of images (B, in_chans, height, width).

        Arguments as for `forward_features`. If `global_pool` is empty, every token has logits:
        (B, N, classes).
        """
        if attn_mask is not None or is_causal:
            return self.forward_head(self.forward_features(x, attn_mask, is_causal))
        if not self.is_compiled:
            return self.forward_head(self.forward_features(x))
        stream = self.run_blocks(self.embed(x), grid=self._grid(x))
        classify = self.part(_classify, self.norm, self.fc_norm, self.head_drop, self.head)
        return classify(self, *stream)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Intermediates:
        """Return the tokens after selected blocks, and the final tokens.

        Args:
            x: Images (B, in_chans, height, width).
            indices: Block indices, an integer n for the last n blocks, or None for all blocks.
            return_prefix_tokens: Return each entry as (patch tokens, prefix tokens).
            norm: Apply the final norm to each entry.
            stop_early: Skip the blocks after the last selected one.
            output_fmt: Return patch tokens as a map (B, C, rows, columns) with "NCHW", or as a
                sequence (B, N, C) with "NLC".
            intermediates_only: Do not return the final tokens.
            output_dict: Return a dictionary with `image_features` (the final tokens),
                `image_intermediates` and `image_intermediates_prefix`.
            attn_mask: As in `forward_features`.
            is_causal: As in `forward_features`.

        Returns:
            (final tokens, intermediates), or only the intermediates.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ConfigError(f"output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}")
        wanted = self._block_indices(indices)
        last = max(wanted) if stop_early else len(self.blocks) - 1
        kept: list[tuple[Tensor, Tensor]] = []
        tokens = self.embed(x)
        grid, x = self._grid(x), tokens
        mask = _combined_mask(x, attn_mask, is_causal)
        for index in range(last + 1):
            x = self.run_block(self.blocks[index], x, grid=grid, attn_mask=mask)
            if index in wanted:
                kept.append(self._split(self.norm(x) if norm else x, output_fmt, grid))
        with_prefix = return_prefix_tokens and self.num_prefix_tokens > 0
        if output_dict:
            found: dict[str, Any] = {"image_intermediates": [patches for patches, _ in kept]}
            if with_prefix:
                found["image_intermediates_prefix"] = [prefix for _, prefix in kept]
            return found if intermediates_only else found | {"image_features": self.norm(x)}
        features: list[Features] = [pair if with_prefix else pair[0] for pair in kept]
        return features if intermediates_only else (self.norm(x), features)

    def get_intermediate_layers(
        self,
        x: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        attn_mask: Tensor | None = None,
    ) -> Intermediates:
        """Call `forward_intermediates` with the arguments that DINO models have."""
        return self.forward_intermediates(
            x,
            n,
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
            attn_mask=attn_mask,
        )

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] | None = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove the blocks that `forward_intermediates` does not need for these indices.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Remove the final norm too.
            prune_head: Remove the classifier and its norm too.

        Returns:
            The selected block indices in ascending order.
        """
        wanted = self._block_indices(indices)
        self.blocks = self.blocks[: max(wanted) + 1]
        kept = tuple(index for index in self.config.softmax_blocks if index <= max(wanted))
        config = replace(
            self.config,
            depth=len(self.blocks),
            softmax_blocks=kept,
            fc_norm=self.config.norm_after_pool,
        )
        self.config = config
        if prune_head:
            self.reset_classifier(0, "")
        if (prune_head and config.norm_after_pool) or (prune_norm and not config.norm_after_pool):
            self.norm, self.fc_norm = nn.Identity(), nn.Identity()
            self.config = replace(self.config, final_norm=False)
        return wanted

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Module, channels and stride of each block's output, in timm's format."""
        stride, channels = self.patch_embed.stride, self.embed_dim
        return [
            {"module": f"blocks.{index}", "num_chs": channels, "reduction": stride, "index": index}
            for index in range(len(self.blocks))
        ]

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Expected preprocessing of inputs, in the format of `timm.data.resolve_data_config`.

        It matches `saccade evaluate` and `predict`: crop the largest central square, resize it with
        bilinear interpolation, normalize.
        """
        config = self.config
        stem = next(name for name, part in self.patch_embed.named_modules() if _has_weight(part))
        heads = [name for name, part in self.head.named_modules() if _has_weight(part)]
        return {
            "architecture": self.name,
            "input_size": (config.in_chans, *config.img_size),
            "fixed_input_size": not config.dynamic_img_size,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": config.mean,
            "std": config.std,
            "num_classes": config.num_classes,
            "label_names": config.class_names,
            "pool_size": None,
            "first_conv": f"patch_embed.{stem}",
            "classifier": ".".join(["head", heads[-1]]).rstrip(".") if heads else None,
        }

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The older name of `pretrained_cfg` in timm."""
        return self.pretrained_cfg

    def _block_indices(self, indices: int | Sequence[int] | None) -> list[int]:
        depth = len(self.blocks)
        if indices is None:
            return list(range(depth))
        asked = range(-indices, 0) if isinstance(indices, int) else indices
        if not asked or not all(-depth <= index < depth for index in asked):
            raise ConfigError(
                f"indices must name blocks from 0 to {depth - 1} (negative ones count from the "
                f"end), got {indices!r}"
            )
        return sorted({index % depth for index in asked})

    def _split(
        self, tokens: Tensor, output_fmt: str, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Split tokens into patch tokens, in the format `output_fmt`, and prefix tokens."""
        prefix, patches = tokens.tensor_split([self.num_prefix_tokens], dim=1)
        if output_fmt == "NCHW":
            patches = patches.transpose(1, 2).reshape(len(tokens), -1, *grid).contiguous()
        return patches, prefix


def _embed(model: VisionTransformer, x: Tensor) -> Tensor:
    tokens = model.patch_embed(x)
    positions = model.positions(model._grid(x))
    out: Tensor = model.pos_drop(model.add_positions(tokens, positions))
    return out


def _combined_mask(tokens: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """The attention mask for tokens (B, N, C): `attn_mask`, or a causal mask."""
    if not is_causal:
        return attn_mask
    if attn_mask is not None:
        raise ConfigError(
            "is_causal must be False if attn_mask is given, got True; add causality to attn_mask"
        )
    count = tokens.shape[1]
    return torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()


def _has_weight(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv2d, nn.Linear))


def _classify(
    model: VisionTransformer, x: Tensor, branch: Tensor | None, keep: Tensor | None
) -> Tensor:
    return model.forward_head(model.norm(add(x, branch, keep)))
