"""Models that return feature maps of some blocks, for example as the backbone of a detector.

Names and behavior are those of timm's `features_only=True`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from saccade.models.vision_transformer import VisionTransformer

__all__ = ["DEFAULT_OUT_INDICES", "FeatureExtractor", "FeatureInfo"]

DEFAULT_OUT_INDICES = 3
"""The last three blocks, as in timm's vision transformers."""


class FeatureInfo:
    """Channels, stride and block of each feature map.

    Args:
        info: One dictionary per block, from `VisionTransformer.feature_info`.
        out_indices: Indices of the blocks whose output is returned.
    """

    def __init__(self, info: list[dict[str, Any]], out_indices: Sequence[int]) -> None:
        self.info, self.out_indices = info, tuple(out_indices)

    def get(self, key: str, idx: int | Sequence[int] | None = None) -> Any:
        """The values of `key` for the returned maps, or for the blocks `idx`."""
        if isinstance(idx, int):
            return self.info[idx][key]
        return [self.info[index][key] for index in (self.out_indices if idx is None else idx)]

    def channels(self, idx: int | Sequence[int] | None = None) -> Any:
        """Number of channels of each map."""
        return self.get("num_chs", idx)

    def reduction(self, idx: int | Sequence[int] | None = None) -> Any:
        """Stride of each map in pixels."""
        return self.get("reduction", idx)

    def module_name(self, idx: int | Sequence[int] | None = None) -> Any:
        """Name of the block that outputs each map."""
        return self.get("module", idx)

    def get_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per returned map."""
        return [self.info[index] for index in self.out_indices]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.info[index]

    def __len__(self) -> int:
        return len(self.info)


class FeatureExtractor(nn.Module):
    """A vision transformer that returns a list of feature maps (B, C, rows, columns).

    Later blocks, the classifier and the final norm are removed.

    Args:
        model: The model; its unused parts are removed in place.
        out_indices: Block indices, or an integer n for the last n blocks.
    """

    def __init__(
        self, model: VisionTransformer, out_indices: int | Sequence[int] = DEFAULT_OUT_INDICES
    ) -> None:
        super().__init__()
        self.out_indices = model.prune_intermediate_layers(out_indices, prune_norm=True)
        self.model = model
        self.feature_info = FeatureInfo(model.feature_info, self.out_indices)

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """The `pretrained_cfg` of the `VisionTransformer`."""
        return self.model.pretrained_cfg

    @property
    def default_cfg(self) -> dict[str, Any]:
        """The older name of `pretrained_cfg` in timm."""
        return self.pretrained_cfg

    def forward(self, x: Tensor) -> list[Tensor]:
        """Feature maps of images (B, in_chans, height, width), in the order of the blocks."""
        found = self.model.forward_intermediates(x, self.out_indices, intermediates_only=True)
        return cast(list[Tensor], found)
