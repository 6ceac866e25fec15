"""Build the network of a configuration, and load the trained network of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import nn

from saccade.config import Config
from saccade.data import DatasetInfo
from saccade.errors import ConfigError
from saccade.models import MODELS, ViTConfig, create_model
from saccade.models.hub import HubModel, clean_state_dict
from saccade.runs import RunFolder

__all__ = [
    "build_model",
    "load_model",
    "load_weights",
    "read_data_description",
    "set_up_training",
]

SET_ELSEWHERE = {
    "attention": "model.attention",
    "attention_options": "model.attention_options",
    **dict.fromkeys(
        (
            "num_classes",
            "class_names",
            "img_size",
            "in_chans",
            "mean",
            "std",
            "max_seq_len",
            "input_dim",
            "pad_symbol",
        ),
        "the data set",
    ),
}
"""Model arguments that `model.overrides` must not contain, and where they are set instead."""


def build_model(config: Config, info: DatasetInfo) -> nn.Module:
    """The network of `config.model` for the classes and the inputs of a data set."""
    _check_model(config, info)
    inputs: dict[str, Any] = {
        "img_size": info.image_size,
        "in_chans": info.channels,
        "mean": info.mean,
        "std": info.std,
    }
    if info.is_sequence:
        inputs = {
            "max_seq_len": info.max_length,
            "input_dim": info.num_symbols,
            "pad_symbol": info.pad_symbol,
            "embedding": "token",
        }
    arguments: dict[str, Any] = {
        **inputs,
        "class_names": info.class_names,
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
    """Enable gradient checkpointing and compilation if the configuration asks for them."""
    if config.train.grad_checkpointing:
        network.set_grad_checkpointing(True)  # type: ignore[operator]
    if config.train.compile:
        network.set_compiled(True)  # type: ignore[operator]


def _check_model(config: Config, info: DatasetInfo) -> None:
    """Raise for a model of other inputs, and for overrides of arguments that are set elsewhere."""
    name = config.model.name
    takes_images = isinstance(MODELS[name].config, ViTConfig)
    if takes_images == info.is_sequence:
        wanted, given = ("a sequence", "images") if takes_images else ("an image", "sequences")
        raise ConfigError(
            f"model.name must be {wanted} model for {info.name}, got {name!r}, which takes "
            f"{given}: see `saccade list models`"
        )
    if config.model.overrides.get("global_pool") == "":
        raise ConfigError(
            "model.overrides.global_pool must be 'token', 'avg' or 'map' in training, got '': "
            "an input has one label, and without pooling each token has logits"
        )
    for key in config.model.overrides:
        if key in SET_ELSEWHERE:
            raise ConfigError(
                f"model.overrides must not contain {key!r}: it is set by {SET_ELSEWHERE[key]}"
            )


def read_data_description(run: RunFolder) -> DatasetInfo:
    """The description of the data set that a run was trained on, from its `dataset.json`."""
    values = run.dataset()
    if not values:
        raise ConfigError(f"{str(run.path)!r} has no dataset.json: its training never started")
    tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return DatasetInfo(**tuples)
    except TypeError:
        raise ConfigError(
            f"{str(run.path / 'dataset.json')!r} does not describe a data set"
        ) from None


def load_model(
    run: RunFolder | str | Path, weights: Literal["best", "last"] | None = None
) -> tuple[nn.Module, DatasetInfo]:
    """Load the trained network of a run, on the CPU in evaluation mode, and its data description.

    The model's `save_pretrained` writes a model card that describes the run.

    Args:
        run: The folder of a finished or unfinished run; its newest intact checkpoint is used.
        weights: The weights that did best on validation, or the last; by default as the run's
            `train.evaluate_with` says.

    Raises:
        ConfigError: The folder has no run, or the run has no intact checkpoint.
    """
    run = RunFolder.open(run)
    model, info, file = load_weights(run, weights)
    assert isinstance(model, HubModel)
    from saccade.train.saved_model import describe_run

    which: Literal["best", "last"] = "best" if file.stem == "best" else "last"
    model.trained = describe_run(run, model, info, which)
    return model, info


def load_weights(
    run: RunFolder, weights: Literal["best", "last"] | None = None
) -> tuple[nn.Module, DatasetInfo, Path]:
    """Do as `load_model`; return the file of weights as well.

    Without validation a run has no best weights, and the last are used.
    """
    from safetensors.torch import load_file

    config = run.config()
    info = read_data_description(run)
    checkpoint, faults = run.newest_intact()
    if checkpoint is None:
        found = f" ({'; '.join(faults)})" if faults else ""
        raise ConfigError(f"{str(run.path)!r} has no intact checkpoint{found}")
    model = build_model(config, info)
    file = checkpoint.weights(weights or config.train.evaluate_with)
    model.load_state_dict(clean_state_dict(load_file(file)))
    return model.eval(), info, file
