"""Build models by name, load saved ones, and return the feature maps of some blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, overload

from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.layers.attentions import ATTENTIONS
from saccade.models.config import ConfigT, ViTConfig, override
from saccade.models.hub import fetch_folder, read_config
from saccade.models.pretrained import pretrained_folder
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.variants import MODELS
from saccade.models.vision_transformer import VisionTransformer

__all__ = ["DEFAULT_OUT_INDICES", "FeatureExtractor", "FeatureInfo", "create_model", "load_model"]

_ARCHITECTURES: dict[str, type[VisionTransformer] | type[SequenceTransformer]] = {
    architecture.architecture: architecture
    for architecture in (VisionTransformer, SequenceTransformer)
}


@overload
def create_model(
    name: str,
    attention: str | None = ...,
    num_classes: int | None = ...,
    *,
    pretrained: bool = ...,
    features_only: Literal[False] = ...,
    out_indices: None = ...,
    **overrides: Any,
) -> VisionTransformer | SequenceTransformer: ...


@overload
def create_model(
    name: str,
    attention: str | None = ...,
    num_classes: int | None = ...,
    *,
    pretrained: bool = ...,
    features_only: Literal[True],
    out_indices: int | Sequence[int] | None = ...,
    **overrides: Any,
) -> FeatureExtractor: ...


def create_model(
    name: str,
    attention: str | None = None,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    features_only: bool = False,
    out_indices: int | Sequence[int] | None = None,
    **overrides: Any,
) -> VisionTransformer | SequenceTransformer | FeatureExtractor:
    """Build a named model.

    Args:
        name: A name from `list_models()`.
        attention: A name from `list_attentions()`; None keeps the variant's own.
        num_classes: Number of logits; None keeps the variant's own.
        pretrained: Load trained weights. `name` is then one of `list_models(pretrained=True)`, or a
            model that has some. The overrides start from the configuration of the weights:
            another `num_classes` gives a new classifier, another `img_size` resamples the
            positions, and rates of dropout may change. The model is in evaluation mode.
        features_only: Build a `FeatureExtractor`, which returns feature maps of some blocks instead
            of logits.
        out_indices: Blocks of the `FeatureExtractor`: block indices, or an integer n for the last n
            blocks; default: the last three.
        **overrides: Fields of `ViTConfig` or `SequenceConfig` to change, such as
            `img_size=(64, 96)`, `in_chans=1` or `drop_path_rate=0.1`. The variant's own
            `attn_drop_rate` becomes 0 if the attention cannot drop weights.

    Returns:
        A newly initialized model in training mode. Under `torch.device("meta")` it allocates no
        memory.

    Raises:
        UnknownNameError: A name or option does not exist; the message suggests similar ones.
        ConfigError: A value is invalid.
    """
    if attention is not None:
        overrides["attention"] = attention
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    if not features_only and out_indices is not None:
        raise ConfigError(
            f"out_indices must be None without features_only=True, got {out_indices!r}"
        )
    if pretrained:
        model = _load_pretrained(name, overrides)
        if not features_only:
            return model
        return FeatureExtractor(model, DEFAULT_OUT_INDICES if out_indices is None else out_indices)
    config = MODELS[name].config
    config = _without_impossible_dropout(override(config, overrides), overrides)
    if features_only:
        if not isinstance(config, ViTConfig):
            raise ConfigError(f"features_only must be False for a sequence model such as {name!r}")
        chosen = DEFAULT_OUT_INDICES if out_indices is None else out_indices
        return FeatureExtractor(VisionTransformer(config, name), chosen)
    for architecture in _ARCHITECTURES.values():
        if isinstance(config, architecture.config_class):
            return architecture.from_config(config, name)
    raise AssertionError(f"no architecture for {type(config).__name__}")


def _load_pretrained(name: str, overrides: Mapping[str, Any]) -> VisionTransformer:
    """Load trained weights and adapt them to other classes and image sizes."""
    trained = load_model(pretrained_folder(name))
    assert isinstance(trained, VisionTransformer)
    own = trained.config
    config = override(own, overrides)
    if config.img_size != own.img_size:
        trained.set_input_size(config.img_size)
    if config.num_classes != own.num_classes:
        trained.reset_classifier(config.num_classes)
    model = VisionTransformer(config, trained.name)
    given, wanted = trained.state_dict(), model.state_dict()
    faults = [key for key in {*given, *wanted} if _shape(given, key) != _shape(wanted, key)]
    if faults:
        changed = [repr(key) for key in overrides if getattr(own, key) != getattr(config, key)]
        raise ConfigError(
            f"overrides must fit the pretrained weights of {name!r}, got {', '.join(changed)}, "
            f"which change {len(faults)} tensors such as {min(faults)!r}"
        )
    model.load_state_dict(given)
    model.trained = trained.trained if config == own else None
    return model.eval()


def _shape(state: Mapping[str, Tensor], key: str) -> tuple[int, ...] | None:
    return tuple(state[key].shape) if key in state else None


def _without_impossible_dropout(config: ConfigT, given: Mapping[str, Any]) -> ConfigT:
    """Set the variant's attention dropout to 0 if the attention cannot drop weights."""
    if config.attn_drop_rate == 0 or "attn_drop_rate" in given:
        return config
    if ATTENTIONS[config.attention].core_class.can_drop_weights:
        return config
    return replace(config, attn_drop_rate=0.0)


def load_model(
    name_or_path: str | Path, *, revision: str | None = None
) -> VisionTransformer | SequenceTransformer:
    """Load a model of any architecture that `save_pretrained` or `push_to_hub` saved.

    Args:
        name_or_path: A folder, or the id of a model on the Hub.
        revision: Branch, tag or commit on the Hub.
    """
    folder = fetch_folder(name_or_path, revision=revision)
    record = read_config(folder)
    architecture = record["architecture"]
    if architecture not in _ARCHITECTURES:
        raise UnknownNameError("architecture", architecture, _ARCHITECTURES)
    return _ARCHITECTURES[architecture].from_folder(folder, record)


DEFAULT_OUT_INDICES = 3
"""The last three blocks, as in timm's vision transformers."""


class FeatureInfo:
    """Channels, stride and block of each feature map."""

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

    Names and behavior are those of timm's `features_only=True`, for example for a detector.
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
