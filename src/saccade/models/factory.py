"""Models by name: build them, load saved ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saccade.errors import UnknownNameError
from saccade.models.config import override
from saccade.models.hub import fetch_folder, read_config
from saccade.models.sequence_transformer import SequenceTransformer
from saccade.models.variants import MODELS
from saccade.models.vision_transformer import VisionTransformer

__all__ = ["create_model", "load_model"]

_ARCHITECTURES: dict[str, type[VisionTransformer] | type[SequenceTransformer]] = {
    architecture.architecture: architecture
    for architecture in (VisionTransformer, SequenceTransformer)
}


def create_model(
    name: str,
    attention: str | None = None,
    num_classes: int | None = None,
    **overrides: Any,
) -> VisionTransformer | SequenceTransformer:
    """Build a named model.

    Args:
        name: A name of `list_models()`.
        attention: A name of `list_attentions()`; None keeps the variant's own.
        num_classes: Number of logits; None keeps the variant's own.
        **overrides: Fields of `ViTConfig` or `SequenceConfig` to change, such as
            `img_size=(64, 96)`, `in_chans=1` or `drop_path_rate=0.1`.

    Returns:
        A freshly started model in training mode; under `torch.device("meta")` one without memory.

    Raises:
        UnknownNameError: For a name or an option that does not exist; it suggests near matches.
        ConfigError: For a value that cannot be accepted.
    """
    config = MODELS[name].config
    if attention is not None:
        overrides["attention"] = attention
    if num_classes is not None:
        overrides["num_classes"] = num_classes
    config = override(config, overrides)
    for architecture in _ARCHITECTURES.values():
        if isinstance(config, architecture.config_class):
            return architecture.from_config(config, name)
    raise AssertionError(f"no architecture for {type(config).__name__}")


def load_model(
    name_or_path: str | Path, *, revision: str | None = None
) -> VisionTransformer | SequenceTransformer:
    """Load what `save_pretrained` or `push_to_hub` saved, whatever its architecture.

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
