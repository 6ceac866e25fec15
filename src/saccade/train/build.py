"""From a configuration to a network, and from a run folder back to one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import nn

from saccade.config import Config
from saccade.data import DatasetInfo
from saccade.errors import ConfigError
from saccade.models import MODELS, ViTConfig, create_model
from saccade.runs import RunFolder

__all__ = [
    "build_model",
    "describe_data",
    "load_model",
    "load_weights",
    "read_data_description",
    "set_up_training",
]

DECIDED = {
    "attention": "model.attention",
    "attention_options": "model.attention_options",
    **dict.fromkeys(
        ("num_classes", "class_names", "img_size", "in_chans", "mean", "std"), "the data set"
    ),
}
"""Arguments of a model that are no `model.overrides`, and what decides them."""


def build_model(config: Config, info: DatasetInfo) -> nn.Module:
    """The network of `config.model`, fitted to the data set's classes, channels and size."""
    _check_model(config)
    arguments: dict[str, Any] = {
        "img_size": info.image_size,
        "in_chans": info.channels,
        "class_names": info.class_names,
        "mean": info.mean,
        "std": info.std,
        "feature_seed": config.run.seed,
        **config.model.overrides,
    }
    if config.model.attention_options:
        arguments["attention_options"] = config.model.attention_options
    model: nn.Module = create_model(
        config.model.name,
        attention=config.model.attention,
        num_classes=info.num_classes,
        **arguments,
    )
    return model


def set_up_training(network: nn.Module, config: Config) -> None:
    """Have the network recompute blocks and compile its parts, where the configuration says so."""
    if config.train.grad_checkpointing:
        network.set_grad_checkpointing(True)  # type: ignore[operator]
    if config.train.compile:
        network.set_compiled(True)  # type: ignore[operator]


def _check_model(config: Config) -> None:
    """Refuse sequence models, and overrides of what is decided elsewhere."""
    name = config.model.name
    if not isinstance(MODELS[name].config, ViTConfig):
        raise ConfigError(f"model.name={name!r} takes sequences; training wants an image model")
    for key in config.model.overrides:
        if key in DECIDED:
            raise ConfigError(f"model.overrides.{key}: not set here, {DECIDED[key]} decides it")


def describe_data(info: DatasetInfo) -> dict[str, Any]:
    """The facts about a data set as JSON values, for `dataset.json`."""
    return asdict(info)


def read_data_description(run: RunFolder) -> DatasetInfo:
    """The facts about the data set that a run was trained on."""
    values = run.dataset()
    if not values:
        raise ConfigError(f"{str(run.path)!r} has no dataset.json: the run never started")
    tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return DatasetInfo(**tuples)
    except TypeError:
        raise ConfigError(f"{str(run.path / 'dataset.json')!r} is not a saccade run's") from None


def load_model(
    run: RunFolder | str | Path, weights: Literal["best", "last"] | None = None
) -> tuple[nn.Module, DatasetInfo]:
    """The trained network of a run, on CPU and in evaluation mode, and what its data was.

    Args:
        run: The run folder; its newest intact checkpoint is used, finished or not.
        weights: Best on validation or last; the run's own `train.evaluate_with` by default.

    Raises:
        ConfigError: There is no run, or no intact checkpoint in it.
    """
    return load_weights(RunFolder.open(run), weights)[:2]


def load_weights(
    run: RunFolder, weights: Literal["best", "last"] | None = None
) -> tuple[nn.Module, DatasetInfo, Path]:
    """As `load_model`, and the file that was taken; without validation there are no best."""
    from safetensors.torch import load_file

    config = run.config()
    info = read_data_description(run)
    checkpoint, faults = run.newest_intact()
    if checkpoint is None:
        found = f" ({'; '.join(faults)})" if faults else ""
        raise ConfigError(f"{str(run.path)!r} has no intact checkpoint{found}")
    model = build_model(config, info)
    file = checkpoint.weights(weights or config.train.evaluate_with)
    model.load_state_dict(load_file(file))
    return model.eval(), info, file
