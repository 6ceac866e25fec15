"""The search space of a recipe: what is drawn for a trial, and the configurations it makes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saccade.config import Config, Range, SearchSpace, with_values
from saccade.data import load_splits
from saccade.errors import ConfigError, UnknownNameError
from saccade.train import build_model

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

__all__ = ["check_space", "draw", "grid", "trial_config"]

MEASURE = {
    f"data.{key}"
    for key in ("name", "root", "val_fraction", "split_seed", "num_train", "folds", "fold")
}
"""Keys that change the validation images: trials could not be compared."""

UNJUDGED = "data.val_fraction is 0: a search is judged by validation images"


def check_space(config: Config) -> None:
    """Refuse a space that no trial, or not every trial, could be made from or compared in.

    Raises:
        ConfigError: There is nothing to search, no validation, or a key or candidate is at fault.
        DataError: The data cannot be loaded.
    """
    if not config.search:
        raise ConfigError(
            "there is nothing to search: give the recipe a search section, or write "
            "'search.optim.lr={low: 1e-4, high: 1e-2, log: true}'"
        )
    if config.data.is_without_validation:
        raise ConfigError(UNJUDGED)
    for key in config.search:
        if key in MEASURE or key.startswith("run."):
            raise ConfigError(f"search.{key}: trials that differ in it cannot be compared")
    splits = load_splits(config.data)
    if not len(splits.val):
        raise ConfigError(UNJUDGED)
    for key, candidates in config.search.items():
        configs = [trial_config(config, {key: value}) for value in _extremes(key, candidates)]
        if key.startswith("model."):
            _check_some_build(key, configs, splits.info)
    if config.tune.sampler == "grid":
        grid(config)


def _check_some_build(key: str, configs: list[Config], info: Any) -> None:
    """Refuse names that are not known, and a key with which no model can be built.

    Some values may need another key's other value.
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
    """Values for a trial, one a key; those that it has already stay."""
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


def grid(config: Config) -> list[dict[str, Any]]:
    """Every combination as Optuna's values, in an order that the seed decides."""
    axes = [_axis(key, candidates) for key, candidates in config.search.items()]
    points = [dict(zip(config.search, values, strict=True)) for values in itertools.product(*axes)]
    random.Random(config.run.seed).shuffle(points)
    return points


def _axis(key: str, candidates: Range | list[Any]) -> list[Any]:
    if isinstance(candidates, list):
        return list(_labels(key, candidates))
    if candidates.step is None and not candidates.is_whole:
        raise ConfigError(
            f"tune.sampler=grid: search.{key} is a range without a step; give it one, or a list "
            "of choices"
        )
    return _steps(candidates)


def trial_config(base: Config, values: Mapping[str, Any]) -> Config:
    """The configuration of one trial: no search in it, and no look at the test set."""
    return with_values(base, {**values, "run.test": False, "search": {}})


def _extremes(key: str, candidates: Range | list[Any]) -> Iterator[Any]:
    """The candidates that are most likely not to be accepted."""
    if isinstance(candidates, list):
        yield from _labels(key, candidates).values()
    else:
        yield candidates.low
        yield _steps(candidates)[-1] if candidates.step is not None else candidates.high


def _steps(candidates: Range) -> list[int | float]:
    """The numbers of a range with a step, or of whole numbers."""
    step = candidates.step or 1
    count = int((candidates.high - candidates.low) / step + 1e-9)
    numbers = [candidates.low + i * step for i in range(count + 1)]
    return numbers if candidates.is_whole else [round(number, 12) for number in numbers]


def _labels(key: str, choices: list[Any]) -> dict[Any, Any]:
    """Choices by what Optuna stores for them: lists and mappings as text."""
    labels = {_label(choice): choice for choice in choices}
    if len(labels) < len(choices):
        raise ConfigError(f"search.{key}: {choices!r} has the same choice twice")
    return labels


def _label(choice: Any) -> Any:
    return json.dumps(choice) if isinstance(choice, list | dict) else choice
