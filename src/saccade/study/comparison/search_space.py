"""Search space of each attention in a comparison that tunes them alike.

The keys and their candidates are in the registry entry of the attention (`Attention.search`). The
number of trials, their first point, their seeds, the sampler and the pruner are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saccade.config import Config, Range
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS
from saccade.layers.attentions import Around
from saccade.study.tuning.space import NO_VALIDATION

__all__ = ["check_tuning", "search_config"]

OPTIONS = "model.attention_options."
"""Start of the keys of options, of which each attention has its own."""


def check_tuning(asked: Config, trials: int, folds: int | None) -> None:
    """Refuse settings with which the attentions cannot be tuned alike on validation images.

    Args:
        asked: The recipe with all overrides.
        trials: Number of trials of each attention.
        folds: Number of folds, None without cross-validation.
    """
    if trials < 1:
        raise ConfigError(f"--tune must be at least 1, the number of trials, got {trials}")
    if folds is not None:
        raise ConfigError(
            "--tune cannot be combined with --folds: validation images of one fold are test images "
            "of another, so that a search would see test images"
        )
    if asked.data.is_without_validation:
        raise ConfigError(NO_VALIDATION)
    if asked.tune.sampler == "grid":
        raise ConfigError(
            "tune.sampler must be tpe or random with --tune, got grid: the grids of two attentions "
            "differ in size"
        )


def search_config(config: Config, attention: str, asked: Config) -> Config:
    """Configuration of the search of an attention.

    The recipe's search section replaces the candidates of keys that the attention declares. Its
    other keys are not searched.

    Args:
        config: Configuration of the first run with the shared setting.
        attention: Name of the attention.
        asked: The recipe with all overrides.
    """
    declared = ATTENTIONS[attention].search
    space = {
        key: _with_own(config, key, asked.search.get(key, candidates))
        for key, candidates in declared.items()
    }
    return config.model_copy(update={"search": space, "tune": asked.tune})


def _with_own(config: Config, key: str, candidates: Range | Around | Sequence[Any]) -> Any:
    """Candidates that include the recipe's own value, with which the search starts."""
    own = _own_value(config, key)
    if isinstance(candidates, Around):
        return Range(low=own / candidates.factor, high=own * candidates.factor, log=True)
    if not isinstance(candidates, Range):
        return [own, *(value for value in candidates if value != own)]
    if not candidates.low <= own <= candidates.high:
        raise ConfigError(
            f"search.{key} must include the recipe's own value {own}, with which all searches "
            f"start, got {candidates.low} to {candidates.high}"
        )
    return candidates


def _own_value(config: Config, key: str) -> Any:
    if key.startswith(OPTIONS):
        return config.model.attention_options.get(key.removeprefix(OPTIONS))
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)
