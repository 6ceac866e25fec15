"""Models written by `save_pretrained`: the record of their training, and how to open them.

`describe_run` makes the record for the model card and `config.json`. `open_saved_model` and
`load_saved_data` do for a saved model what `load_weights` and `load_run_data` do for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from saccade.config import Config, DataConfig, make_config
from saccade.data import DatasetInfo, Splits, load_splits
from saccade.errors import ConfigError, DataError
from saccade.models import SequenceConfig, SequenceTransformer, VisionTransformer, ViTConfig
from saccade.models import load_model as load_saved
from saccade.models.hub import CONFIG_FILE, HubModel, read_config, training_record
from saccade.models.model_card import fingerprint
from saccade.runs import RunFolder
from saccade.train.run_data import data_differences

__all__ = [
    "data_of",
    "describe_run",
    "is_saved_model",
    "load_saved_data",
    "open_saved_model",
    "other_data",
    "unsure_below",
]


def is_saved_model(path: RunFolder | str | Path) -> bool:
    """True if the path is a folder of `save_pretrained` and not a run folder."""
    if isinstance(path, RunFolder):
        return False
    return (Path(path) / CONFIG_FILE).is_file() and not RunFolder(path).exists()


def describe_run(
    run: RunFolder, model: HubModel, info: DatasetInfo, which: Literal["best", "last"]
) -> dict[str, Any]:
    """The record of the training of a run's weights, as JSON values without local paths."""
    config, summary, status = run.config(), run.summary(), run.status()
    values = config.model_dump(mode="json", exclude={"search", "tune"})
    values["data"]["root"] = None
    if config.train.teacher is not None:
        values["train"]["teacher"] = config.train.teacher.name
    machine, accuracy = run.environment(), _accuracy(summary, which)
    kept = ("saccade", "device", "time", "git_revision")
    return {
        "data": {
            "name": info.name,
            "num_classes": info.num_classes,
            "image_size": list(info.image_size),
            "channels": info.channels,
            **({"kind": info.kind, "symbols": list(info.symbols)} if info.is_sequence else {}),
        },
        "config": values,
        "environment": {name: str(machine[name]) for name in kept if machine.get(name)},
        "seed": config.run.seed,
        "weights": which,
        "epochs": config.train.epochs,
        "epochs_done": int(status.get("epoch", summary.get("epochs", 0))),
        "result": None
        if accuracy is None
        else {"accuracy": accuracy, "count": summary["test_count"]},
        "fingerprint": fingerprint(model.state_dict()),
    }


def _accuracy(summary: Mapping[str, Any], which: str) -> float | None:
    """The test accuracy of one set of weights; None if the run did not measure it."""
    if "test_count" not in summary:
        return None
    selected = summary.get("test_accuracy") if summary.get("selected") == which else None
    found = summary.get(f"test_accuracy_{which}", selected)
    return None if found is None else float(found)


def open_saved_model(
    path: str | Path,
) -> tuple[VisionTransformer | SequenceTransformer, DatasetInfo, Config]:
    """Load a saved classifier, its data description and its training configuration."""
    model = load_saved(path)
    config = model.config
    if not config.num_classes or not config.global_pool:
        raise ConfigError(f"{str(path)!r} must hold a classifier, got a model without classes")
    names = config.class_names or tuple(str(number) for number in range(config.num_classes))
    trained = model.trained or {}
    name = str(trained["data"]["name"]) if trained else Path(path).name
    if isinstance(config, SequenceConfig):
        info = _sequence_info(path, name, names, config, trained)
    else:
        assert isinstance(config, ViTConfig)
        images = (config.img_size, config.in_chans, config.mean, config.std)
        info = DatasetInfo(name, config.num_classes, names, *images)
    return model, info, make_config(trained.get("config", {}), source=str(Path(path) / CONFIG_FILE))


def _sequence_info(
    path: str | Path,
    name: str,
    names: tuple[str, ...],
    config: SequenceConfig,
    trained: Mapping[str, Any],
) -> DatasetInfo:
    data = trained.get("data", {})
    kind, symbols = data.get("kind"), data.get("symbols")
    if kind not in ("pixels", "bytes", "symbols") or not isinstance(symbols, list):
        raise ConfigError(
            f"{str(path)!r} must record what its sequences are, got a sequence model that was not "
            "saved from a run of saccade"
        )
    return DatasetInfo(
        name=name,
        num_classes=config.num_classes,
        class_names=names,
        image_size=(1, config.max_seq_len),
        channels=1,
        mean=(0.0,),
        std=(1.0,),
        kind=kind,
        num_symbols=config.input_dim,
        pad_symbol=config.pad_symbol,
        symbols=tuple(map(str, symbols)),
    )


def unsure_below(model: VisionTransformer | SequenceTransformer) -> float | None:
    """The calibrated threshold of a model's confidence; None if it has none."""
    found = (model.trained or {}).get("unsure")
    return None if found is None else float(found["below"])


def data_of(path: str | Path, *, name: str | None = None, root: Path | None = None) -> DataConfig:
    """The data to evaluate a saved model on: its training data set, or the named one.

    Raises:
        ConfigError: No data set is named, and the model has no record of its training data, or it
            was trained on a folder and `root` is None.
    """
    record, where = read_config(Path(path)), Path(path) / CONFIG_FILE
    trained = training_record(record, where)
    if name is None:
        if trained is None:
            raise ConfigError(
                f"{str(path)!r} does not say what it was trained on: name the data, as in --data "
                "cifar10, or --data folder --data-root DIR"
            )
        config = make_config(trained["config"], source=str(where))
        if config.data.name in ("folder", "text_folder") and root is None:
            raise ConfigError(
                f"{str(path)!r} was trained on a folder of "
                f"{'images' if config.data.name == 'folder' else 'texts'}, whose place it does not "
                "record: name the folder, as in --data-root DIR"
            )
        return config.data.model_copy(update={"root": root})
    size = record.get("img_size")
    like = None if trained is None else make_config(trained["config"], source=str(where)).data
    side = size[0] if isinstance(size, list) and size else None
    return other_data(name, root, side, like=like)


def other_data(
    name: str, root: Path | None, side: int | None, *, like: DataConfig | None = None
) -> DataConfig:
    """A data set by name, for a model.

    Args:
        name: The name.
        root: The folder of the data.
        side: Images are resized to it if they have no fixed size.
        like: The data that the model was trained on; a set of the same name has the same options.
    """
    is_sized = name in ("folder", "shapes") or ":" in name
    options = like.options if like is not None and like.name == name else {}
    return DataConfig(name=name, root=root, image_size=side if is_sized else None, options=options)


def load_saved_data(path: str | Path, info: DatasetInfo, data: DataConfig) -> Splits:
    """Load data for a saved model."""
    splits = load_splits(data)
    if faults := data_differences(info, splits.info):
        raise DataError(f"{data.name!r} does not fit the model {str(path)!r}: {', '.join(faults)}")
    return splits
