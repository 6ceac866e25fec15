"""Saving and loading a model as a folder: `model.safetensors` and `config.json`.

The folder is what the Hugging Face Hub holds; `push_to_hub` and the model card come from
huggingface_hub's mixin. `config.json` has the model's name, its architecture and every field of
its config. No pickle is read or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from huggingface_hub import ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.models.config import TransformerConfig
from saccade.models.weight_files import write_tensors
from saccade.version import __version__

__all__ = ["HubModel", "clean_state_dict", "fetch_folder", "read_config"]

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_HEADER = ("architecture", "name", "saccade_version")


def clean_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names of a model that is neither wrapped nor compiled."""
    return {
        ".".join(part for part in key.split(".") if part not in _WRAPPERS): value
        for key, value in state.items()
    }


class HubModel(
    nn.Module,
    ModelHubMixin,
    library_name="saccade",
    tags=["saccade", "image-classification"],
):
    """A module that can be saved to a folder or to the Hub, and loaded from there."""

    architecture: ClassVar[str]
    config_class: ClassVar[type[TransformerConfig]]
    config: TransformerConfig
    name: str | None

    @classmethod
    def from_config(cls, config: TransformerConfig, name: str | None = None) -> Self:
        """Build a model from its config."""
        raise NotImplementedError

    def _save_pretrained(self, save_directory: Path) -> None:
        state = clean_state_dict(self.state_dict())
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        write_tensors(tensors, save_directory / WEIGHTS_FILE, metadata={"format": "pt"})
        header = (self.architecture, self.name, __version__)
        record = dict(zip(_HEADER, header, strict=True)) | asdict(self.config)
        text = json.dumps(record, indent=2) + "\n"
        (save_directory / CONFIG_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Self:
        """Load a model, in evaluation mode, from a folder or from the Hub.

        Args:
            pretrained_model_name_or_path: A folder of `save_pretrained`, or the id of a model on
                the Hub.
            revision: Branch, tag or commit on the Hub.
            token: Access token for the Hub; True takes the stored one.
            cache_dir: Where downloads are kept.
            force_download: Whether to fetch again what is in the cache.
            local_files_only: Whether to take only what is in the cache.

        Raises:
            ConfigError: Where the folder or its config is missing or broken, or holds another
                architecture.
        """
        folder = fetch_folder(
            pretrained_model_name_or_path,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
        )
        return cls.from_folder(folder, read_config(folder))

    @classmethod
    def from_folder(cls, folder: Path, record: Mapping[str, Any]) -> Self:
        """Load a model from a local folder whose `config.json` says `record`."""
        where = folder / CONFIG_FILE
        if record["architecture"] != cls.architecture:
            raise ConfigError(
                f"{where}: architecture={record['architecture']!r}, but {cls.__name__} loads "
                f"{cls.architecture!r}; saccade.models.load_model picks the class by itself"
            )
        values = {key: value for key, value in record.items() if key not in _HEADER}
        known = [spec.name for spec in fields(cls.config_class)]
        try:
            for key in values:
                if key not in known:
                    raise UnknownNameError("key", key, known)
            model = cls.from_config(cls.config_class(**values), record.get("name"))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        model.load_state_dict(_read_weights(folder, model))
        return model.eval()


def fetch_folder(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """The local folder of a model: `name_or_path` itself, or a download from the Hub."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    try:
        return Path(
            snapshot_download(
                str(name_or_path),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                allow_patterns=[CONFIG_FILE, WEIGHTS_FILE],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"{str(name_or_path)!r} is neither a folder nor a model that the Hub gives out: {error}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """What `config.json` in `folder` says; a missing or broken one raises `ConfigError`."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the folder was not saved by save_pretrained")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("architecture"), str):
        raise ConfigError(
            f"{path} names no 'architecture': it is not the config of a saccade model"
        )
    return record


def _read_weights(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights in `folder`, checked against the names and shapes that `model` has."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: the folder was not saved by save_pretrained")
    try:
        state = clean_state_dict(load_file(path))
    except SafetensorError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in state.items()}
    if own != found:
        different = sorted(key for key in own | found if own.get(key) != found.get(key))
        raise ConfigError(
            f"{path} does not fit {CONFIG_FILE}: {len(different)} tensors are missing, unexpected "
            f"or of another shape, such as {different[0]!r}"
        )
    return state
