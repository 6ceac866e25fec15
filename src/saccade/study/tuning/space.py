"""Search space of a recipe: check it, draw values, and build the trials' configurations."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saccade.config import Config, Range, SearchSpace, with_values
from saccade.data import Splits, load_splits
from saccade.errors import ConfigError, UnknownNameError
from saccade.train import build_model
from saccade.train.cost import warn_of_default_size

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

__all__ = ["base_point", "check_space", "draw", "grid", "trial_config", "value_of", "values_of"]

MEASURE = {
    f"data.{key}"
    for key in ("name", "root", "val_fraction", "split_seed", "num_train", "folds", "fold")
}
"""Keys that change the validation images, so that trials could not be compared."""

NO_VALIDATION = "a search needs validation images: data.val_fraction must be above 0"


def check_space(config: Config, splits: Splits | None = None) -> Splits:
    """Check that valid and comparable trials can be drawn from the search space.

    Args:
        config: Configuration with a search section.
        splits: Its data; loaded by default.

    Returns:
        The data of the search.

    Raises:
        ConfigError: The space is empty, a key or candidate is invalid, or no validation images.
        DataError: The data cannot be loaded.
    """
    if not config.search:
        raise ConfigError(
            "there is nothing to search; add a search section to the recipe, or write "
            "'search.optim.lr={low: 1e-4, high: 1e-2, log: true}'"
        )
    if config.data.is_without_validation:
        raise ConfigError(NO_VALIDATION)
    for key in config.search:
        if key in MEASURE or key.startswith("run."):
            raise ConfigError(
                f"search.{key} cannot be searched: trials with different values cannot be compared"
            )
    splits = load_splits(config.data) if splits is None else splits
    if not len(splits.val):
        raise ConfigError(NO_VALIDATION)
    warn_of_default_size(config, splits)
    for key, candidates in config.search.items():
        configs = [trial_config(config, {key: value}) for value in _extremes(key, candidates)]
        if key.startswith("model."):
            _check_some_build(key, configs, splits.info)
    if config.tune.sampler == "grid":
        grid(config)
    return splits


def _check_some_build(key: str, configs: list[Config], info: Any) -> None:
    """Refuse unknown names, and a key with which no model can be built.

    One value that builds is enough: the others may work together with another key's values.
    """
    import torch

    faults = []
    for config in configs:
        try:
            with torch.device("meta"):
                build_model(config, info)
        except UnknownNameError as error:
            raise ConfigError(f"search.{key}: {error}") from error
        except ConfigError as error:
            faults.append(str(error))
    if len(faults) == len(configs):
        raise ConfigError(f"search.{key}: {faults[0]}")


def draw(trial: BaseTrial, space: SearchSpace) -> dict[str, Any]:
    """Draw a value for each key. Values that the trial already has are kept."""
    return {key: _draw_one(trial, key, candidates) for key, candidates in space.items()}


def _draw_one(trial: BaseTrial, key: str, candidates: Range | list[Any]) -> Any:
    if isinstance(candidates, list):
        labels = _labels(key, candidates)
        return labels[trial.suggest_categorical(key, list(labels))]
    low, step, log = candidates.low, candidates.step, candidates.log
    high = _steps(candidates)[-1] if step is not None else candidates.high
    if candidates.is_whole:
        return trial.suggest_int(key, int(low), int(high), step=int(step or 1), log=log)
    return trial.suggest_float(key, low, high, step=step, log=log)


def base_point(config: Config) -> dict[str, Any]:
    """The values of the configuration itself, as Optuna stores them."""
    return {key: _label(value_of(config, key)) for key in config.search}


def values_of(config: Config, point: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a trial that differ from those of the configuration."""
    found = {}
    for key, value in point.items():
        candidates = config.search[key]
        found[key] = _labels(key, candidates)[value] if isinstance(candidates, list) else value
    return {key: value for key, value in found.items() if value != value_of(config, key)}


def value_of(config: Config, key: str) -> Any:
    """The value of a dotted key; None for an option that is not set."""
    found: Any = config.model_dump(mode="json")
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def grid(config: Config) -> list[dict[str, Any]]:
    """All combinations as Optuna stores them, shuffled by the seed."""
    axes = [_axis(key, candidates) for key, candidates in config.search.items()]
    points = [dict(zip(config.search, values, strict=True)) for values in itertools.product(*axes)]
    random.Random(config.run.seed).shuffle(points)
    return points


def _axis(key: str, candidates: Range | list[Any]) -> list[Any]:
    if isinstance(candidates, list):
        return list(_labels(key, candidates))
    if candidates.step is None and not candidates.is_whole:
        raise ConfigError(
            f"search.{key} must have a step or be a list of choices for tune.sampler=grid, "
            "got a range without a step"
        )
    return _steps(candidates)


def trial_config(base: Config, values: Mapping[str, Any]) -> Config:
    """Configuration of one trial, without the search section and without testing."""
    return with_values(base, {**values, "run.test": False, "search": {}})


def _extremes(key: str, candidates: Range | list[Any]) -> Iterator[Any]:
    """Candidates to check: all choices of a list, or both ends of a range."""
    if isinstance(candidates, list):
        yield from _labels(key, candidates).values()
    else:
        yield candidates.low
        yield _steps(candidates)[-1] if candidates.step is not None else candidates.high


def _steps(candidates: Range) -> list[int | float]:
    """Values of a range that has a step or consists of integers."""
    step = candidates.step or 1
    count = int((candidates.high - candidates.low) / step + 1e-9)
    numbers = [candidates.low + i * step for i in range(count + 1)]
    return numbers if candidates.is_whole else [round(number, 12) for number in numbers]


def _labels(key: str, choices: list[Any]) -> dict[Any, Any]:
    """Map what Optuna stores to the choices. Lists and mappings are stored as JSON text."""
    labels = {_label(choice): choice for choice in choices}
    if len(labels) < len(choices):
        raise ConfigError(f"search.{key} must have different choices, got {choices!r}")
    return labels


def _label(choice: Any) -> Any:
    return json.dumps(choice) if isinstance(choice, list | dict) else choice
