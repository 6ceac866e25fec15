"""Open the model to convert: a run, a saved model, or a ViT of timm or transformers.

All become a `VisionTransformer` of saccade with softmax attention, so that its conversion is an
ordinary run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.data import DatasetInfo
from saccade.errors import ConfigError, DataError
from saccade.io import read_json
from saccade.models import VisionTransformer
from saccade.models.hub import CONFIG_FILE, WEIGHTS_FILE
from saccade.models.model_card import fingerprint
from saccade.runs import RunFolder
from saccade.train.build import load_model
from saccade.train.run_data import data_differences
from saccade.train.saved_model import open_saved_model

__all__ = ["Source", "open_source"]

TIMM = "timm:"
WEIGHT_FILES = (WEIGHTS_FILE, "pytorch_model.bin")


@dataclass(frozen=True)
class Source:
    """A softmax model to convert, on the CPU in evaluation mode.

    Attributes:
        name: Name from the command line.
        kind: `run`, `saved model`, `timm` or `transformers`.
        model: The model.
        info: Description of its data; None if unknown.
        config: Configuration that it was trained with; None if unknown.
        run: Its run folder, if it is one.
    """

    name: str
    kind: str
    model: VisionTransformer
    info: DatasetInfo | None = None
    config: Config | None = None
    run: RunFolder | None = None

    @property
    def fingerprint(self) -> int:
        """A checksum of the weights."""
        return fingerprint(self.model.state_dict())

    def check_data(self, found: DatasetInfo) -> None:
        """Raise if data has other classes or image sizes than the model.

        Raises:
            DataError: The data does not fit; the message says how it differs.
        """
        config = self.model.config
        names = config.class_names if self.info is None else self.info.class_names
        if names is None and len(found.class_names) == config.num_classes:
            names = found.class_names  # a model that does not name its classes
        known = DatasetInfo(
            self.name,
            config.num_classes,
            names or tuple(str(number) for number in range(config.num_classes)),
            config.img_size,
            config.in_chans,
            config.mean,
            config.std,
        )
        if faults := data_differences(known, found):
            raise DataError(
                f"--data {found.name!r} must have the classes and images of {self.name!r}, got "
                f"{', '.join(faults)}"
            )


def open_source(source: str | Path, weights: str | Path | None = None) -> Source:
    """Open a model to convert.

    Args:
        source: A run folder; a folder of `save_pretrained` of saccade, timm or transformers; or
            `timm:NAME` with `weights`.
        weights: A file of weights for a model of timm or transformers; by default that of the
            folder.

    Raises:
        ConfigError: Nothing that can be converted is there.
    """
    name = str(source)
    if name.startswith(TIMM):
        if weights is None:
            raise ConfigError(f"--weights must be a file for {name!r}: nothing is downloaded")
        return _checked(_from_timm(name, name.removeprefix(TIMM), Path(weights), {}))
    folder = Path(source)
    if RunFolder(folder).exists():
        return _checked(_from_run(folder, weights))
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(
            f"SOURCE must be a run folder, a folder with {CONFIG_FILE}, or timm:NAME with "
            f"--weights, got {name!r}"
        )
    record = read_json(folder / CONFIG_FILE)
    if not isinstance(record, dict):
        raise ConfigError(f"{str(folder / CONFIG_FILE)!r} must hold a mapping")
    if "model_type" in record:
        from saccade.convert.foreign import from_transformers

        return _checked(from_transformers(name, record, _weights(folder, weights)))
    if "saccade_version" not in record and isinstance(record.get("architecture"), str):
        return _checked(_from_timm(name, record["architecture"], _weights(folder, weights), record))
    _refuse_weights(weights, name)
    model, info, config = open_saved_model(folder)
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"SOURCE must be an image model, got {type(model).__name__}")
    return _checked(Source(name, "saved model", model, info, config if model.trained else None))


def _from_run(folder: Path, weights: str | Path | None) -> Source:
    _refuse_weights(weights, str(folder))
    run = RunFolder.open(folder)
    model, info = load_model(run)
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"SOURCE must be an image model, got {type(model).__name__}")
    return Source(str(folder), "run", model, info, run.config(), run)


def _from_timm(name: str, model: str, weights: Path, record: dict[str, Any]) -> Source:
    from saccade.convert.foreign import from_timm

    return from_timm(name, model, weights, record)


def _weights(folder: Path, weights: str | Path | None) -> Path:
    """The file of weights that was named, or that of the folder."""
    if weights is not None:
        return Path(weights)
    for file in WEIGHT_FILES:
        if (folder / file).is_file():
            return folder / file
    raise ConfigError(f"{str(folder)!r} must have {' or '.join(WEIGHT_FILES)}; or give --weights")


def _refuse_weights(weights: str | Path | None, name: str) -> None:
    if weights is not None:
        raise ConfigError(f"--weights must not be given for {name!r}, which has its own")


def _checked(source: Source) -> Source:
    """The source, if its model has softmax attention over all tokens."""
    config = source.model.config
    if config.attention != "softmax":
        raise ConfigError(f"SOURCE must have softmax attention, got {config.attention!r}")
    if config.window is not None:
        raise ConfigError("SOURCE must attend over all tokens, got a model with windows")
    if config.local_conv is not None:
        raise ConfigError("SOURCE must have no local_conv, got a converted model")
    if not config.num_classes or not config.global_pool:
        raise ConfigError("SOURCE must be a classifier, got a model without classes or pooling")
    return source
