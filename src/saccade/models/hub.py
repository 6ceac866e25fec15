"""Save and load a model as a folder with `model.safetensors` and `config.json`.

The Hugging Face Hub stores the same files. `push_to_hub` comes from huggingface_hub's mixin.
`config.json` has the model's name, its architecture, every field of its config, and the SHA-256 of
the weights and of itself. Pickle is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.io import check_regular, is_unchanged, read_json, sealed, sha256_file, write_json
from saccade.models.config import TransformerConfig
from saccade.models.weight_files import write_tensors
from saccade.upgrades import (
    CONFIG_VERSION,
    RENAMED,
    former_attention_options,
    given_twice,
    renamed,
)
from saccade.version import __version__

__all__ = [
    "HubModel",
    "check_weights_hash",
    "clean_state_dict",
    "fetch_folder",
    "has_hash",
    "read_config",
    "training_record",
]

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_HEADER = ("architecture", "name", "saccade_version", "config_version")
TRAINED = "trained"
_SEAL, _WEIGHTS_SHA256 = "sha256", "weights_sha256"
_NOT_CONFIG = {*_HEADER, TRAINED, _SEAL, _WEIGHTS_SHA256}
_TRAINED_KINDS: dict[str, Any] = {
    "data": dict,
    "config": dict,
    "environment": dict,
    "result": (dict, type(None)),
    "seed": int,
    "epochs": int,
    "epochs_done": int,
    "fingerprint": int,
    "weights": str,
}
_DATA_KINDS = {"name": str, "num_classes": int, "channels": int, "image_size": list}
_RESULT_KINDS: dict[str, Any] = {"accuracy": (int, float), "count": int}
_UNSURE_KINDS: dict[str, Any] = {
    "below": (int, float),
    "max_error": (int, float),
    "level": (int, float),
    "count": int,
    "test_accepted": int,
    "test_errors": int,
}


def clean_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a wrapped or compiled model to those of the plain model."""
    return {plain_name(key): value for key, value in state.items()}


def plain_name(key: str) -> str:
    """The present name of a tensor, without the parts that wrappers and torch.compile add."""
    return ".".join(RENAMED.get(part, part) for part in key.split(".") if part not in _WRAPPERS)


class HubModel(nn.Module, ModelHubMixin):
    """A module that can be saved to a folder or to the Hub, and loaded from there.

    Attributes:
        trained: Record of the training for the model card; None if unknown.
    """

    architecture: ClassVar[str]
    config_class: ClassVar[type[TransformerConfig]]
    config: TransformerConfig
    name: str | None
    trained: Mapping[str, Any] | None = None

    @classmethod
    def from_config(cls, config: TransformerConfig, name: str | None = None) -> Self:
        """Build a model from its config."""
        raise NotImplementedError

    def _save_pretrained(self, save_directory: Path) -> None:
        state = clean_state_dict(self.state_dict())
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        write_tensors(tensors, save_directory / WEIGHTS_FILE, metadata={"format": "pt"})
        header = (self.architecture, self.name, __version__, CONFIG_VERSION)
        record = dict(zip(_HEADER, header, strict=True)) | asdict(self.config)
        if self.trained is not None:
            record[TRAINED] = dict(self.trained)
        record[_WEIGHTS_SHA256] = sha256_file(save_directory / WEIGHTS_FILE)
        write_json(save_directory / CONFIG_FILE, sealed(record))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The model card, which `save_pretrained` and `push_to_hub` write as README.md."""
        from saccade.models.model_card import make_card

        return make_card(self, clean_state_dict(self.state_dict()))

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
            pretrained_model_name_or_path: A folder written by `save_pretrained`, or the id of a
                model on the Hub.
            revision: Branch, tag or commit on the Hub.
            token: Access token for the Hub; True uses the stored one.
            cache_dir: Folder for downloads.
            force_download: Download again even if the files are in the cache.
            local_files_only: Use only the cache, without the network.

        Raises:
            ConfigError: The folder or its config is missing or invalid, or holds a model of
                another architecture.
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
        """Load a model from a local folder; `record` is the content of its `config.json`."""
        where = folder / CONFIG_FILE
        if record["architecture"] != cls.architecture:
            raise ConfigError(
                f"{where}: architecture must be {cls.architecture!r} for {cls.__name__}, got "
                f"{record['architecture']!r}; saccade.models.load_model chooses the class"
            )
        values = _upgraded(record, where)
        known = [spec.name for spec in fields(cls.config_class)]
        try:
            for key in values:
                if key not in known:
                    raise UnknownNameError("key", key, known)
            config = cls.config_class(**values)
            shapes = _weight_shapes(folder)
            _check_depth(folder, shapes, config.depth)
            check_weights_hash(folder, record)
            with torch.device("meta"):
                _check_weights(folder, shapes, cls.from_config(config))
            model = cls.from_config(config, record.get("name"))
        except _WeightsError:
            raise
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        model.load_state_dict(clean_state_dict(load_file(folder / WEIGHTS_FILE)))
        model.trained = training_record(record, where)
        return model.eval()


def _upgraded(record: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Convert the fields of a saved config to the present version; a missing version means 1."""
    version = record.get("config_version", 1)
    if not isinstance(version, int) or not 1 <= version <= CONFIG_VERSION:
        raise ConfigError(
            f"{where}: config_version must be an integer from 1 to {CONFIG_VERSION}, got "
            f"{version!r}; a newer saccade may have written it"
        )
    if fault := given_twice(record):
        raise ConfigError(f"{where}: {fault}")
    values = renamed({key: value for key, value in record.items() if key not in _NOT_CONFIG})
    options = values.get("attention_options")
    if isinstance(options, Mapping):
        values["attention_options"] = former_attention_options(options, version)
    return values


def fetch_folder(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """The folder of a model: `name_or_path` if it is a folder, else a download from the Hub."""
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
            f"{str(name_or_path)!r} is neither a folder nor an accessible model on the Hub: {error}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` in `folder`; a missing or invalid file raises `ConfigError`."""
    path = folder / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{path} does not exist: the folder was not saved by save_pretrained")
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("architecture"), str):
        raise ConfigError(f"{path} has no 'architecture': it is not the config of a saccade model")
    if not is_unchanged(record):
        raise ConfigError(
            f"{path} was changed after it was written; restore it, or remove its {_SEAL!r} to "
            "accept the change"
        )
    return record


def has_hash(folder: Path) -> bool:
    """True if `config.json` in `folder` has the hashes of the model, as all but old ones have."""
    return _SEAL in read_config(folder)


def training_record(record: Mapping[str, Any], where: Path) -> dict[str, Any] | None:
    """The record of the training in a `config.json`; None if there is none."""
    trained = record.get(TRAINED)
    if trained is None:
        return None
    if not isinstance(trained, dict):
        raise ConfigError(f"{where}: {TRAINED} must be a mapping, got {type(trained).__name__}")
    _check_kinds(trained, _TRAINED_KINDS, f"{where}: {TRAINED}")
    _check_kinds(trained["data"], _DATA_KINDS, f"{where}: {TRAINED}.data")
    if trained["result"] is not None:
        _check_kinds(trained["result"], _RESULT_KINDS, f"{where}: {TRAINED}.result")
    if trained.get("unsure") is not None:
        _check_kinds(trained, {"unsure": dict}, f"{where}: {TRAINED}")
        _check_kinds(trained["unsure"], _UNSURE_KINDS, f"{where}: {TRAINED}.unsure")
    return trained


def _check_kinds(values: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    for key, kind in kinds.items():
        if key not in values or not isinstance(values[key], kind):
            raise ConfigError(f"{where}.{key} is missing or of the wrong type")


class _WeightsError(ConfigError):
    """The weights are missing or do not fit the configuration."""


def _weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the weights, by name; reads only the file's header."""
    path = folder / WEIGHTS_FILE
    if not path.exists():
        raise _WeightsError(f"{path} does not exist: the folder was not saved by save_pretrained")
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _WeightsError(f"{path} cannot be read: {error}") from error
    return {plain_name(name): shape for name, shape in shapes.items()}


def check_weights_hash(folder: Path, record: Mapping[str, Any]) -> None:
    """Check that the weights are those that were saved with `config.json`, if it has their hash.

    Raises:
        ConfigError: They are others.
    """
    path, sha256 = folder / WEIGHTS_FILE, record.get(_WEIGHTS_SHA256)
    if sha256 is not None and sha256_file(path) != sha256:
        raise _WeightsError(f"{path} is not what was saved with {CONFIG_FILE}; restore it")


def _check_depth(folder: Path, shapes: Mapping[str, tuple[int, ...]], depth: int) -> None:
    """Check the number of blocks before a model is built, which takes a minute for thousands."""
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    if len(blocks) != depth:
        path = folder / WEIGHTS_FILE
        raise _WeightsError(
            f"{path} does not fit {CONFIG_FILE}: tensors of {len(blocks)} blocks, not of {depth}"
        )


def _check_weights(folder: Path, found: Mapping[str, tuple[int, ...]], model: nn.Module) -> None:
    """Check names and shapes of the weights against `model`."""
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    if own != found:
        path = folder / WEIGHTS_FILE
        different = sorted(key for key in {*own, *found} if own.get(key) != found.get(key))
        raise _WeightsError(
            f"{path} does not fit {CONFIG_FILE}: {len(different)} tensors are missing, unexpected "
            f"or of another shape, such as {different[0]!r}"
        )
