"""The options of generated and text data sets, `data.options`, with their defaults and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from saccade.config import DataConfig
from saccade.data.tasks.pathfinder import SETTINGS, PathfinderSettings
from saccade.errors import MAX_VALUE, ConfigError, UnknownNameError, shorten

__all__ = [
    "GENERATED",
    "MAX_SYMBOLS",
    "pathfinder_settings",
    "recall_options",
    "refuse_options",
    "task_options",
]

GENERATED = ("listops_lra", "listops_taylorshift", "pathfinder", "recall")
MAX_SYMBOLS = 1 << 15
MAX_LENGTH = 1 << 20
"""Longest sequence."""
_MOST = {"seed": (1 << 64) - 1, "cells": 16}
MAX_SIZE = 128
"""Largest count or size of an option of pathfinder: the side of its larger images."""
_LEAST = {"seed": 0, "num_distractors": 0}
_COUNTS = ("contour_length", "num_distractors", "distractor_length", "cells")  # of pathfinder
_RECALL: dict[str, Any] = {"num_pairs": 16, "num_keys": 64, "num_values": 16, "length": None}
_OPTIONS: dict[str, dict[str, Any]] = {
    "listops_lra": {"seed": 0},
    "listops_taylorshift": {"seed": 0},
    "pathfinder": {"seed": 0} | {k: v for k, v in asdict(SETTINGS[32]).items() if k != "size"},
    "recall": {"seed": 0} | _RECALL,
    "text_folder": {"max_length": 4000},
}
"""Options of each data set, with their defaults (for pathfinder, those at 32 px)."""


def task_options(config: DataConfig) -> dict[str, Any]:
    """The options of `config` with the defaults of the data set.

    Raises:
        UnknownNameError: The data set has no such option.
        ConfigError: A value is of the wrong kind.
    """
    known = _OPTIONS[config.name]
    for name, value in config.options.items():
        if name not in known:
            raise UnknownNameError(f"option of data set {config.name!r}", name, known)
        _check(config, name, value)
    return known | config.options


def refuse_options(config: DataConfig) -> None:
    """Raise if options are set for a data set that has none."""
    if config.options and config.name not in _OPTIONS:
        raise ConfigError(
            f"data.options must be empty for {config.name!r}, got {', '.join(config.options)}"
        )


def _check(config: DataConfig, name: str, value: object) -> None:
    if name == "length" and value is None:
        return
    is_size = config.name == "pathfinder" and name not in (*_COUNTS, "seed")
    is_number = isinstance(value, (int, float) if is_size else int) and not isinstance(value, bool)
    least = _LEAST.get(name, 0 if is_size else 1)
    most = _MOST.get(name, MAX_SIZE if config.name == "pathfinder" else MAX_LENGTH)
    is_allowed = is_number and least <= value <= most  # type: ignore[operator]
    if not is_allowed or (is_size and value == 0 and name != "margin"):
        what = "a number above 0" if is_size else f"an integer of at least {least}"
        raise ConfigError(
            f"data.options.{name} must be {what} and at most {most}, got "
            f"{shorten(repr(value), MAX_VALUE)}"
        )


def recall_options(options: Mapping[str, Any]) -> dict[str, int]:
    """The checked sizes of `recall`."""
    sizes = {name: options[name] for name in ("num_pairs", "num_keys", "num_values")}
    pairs, keys, values = sizes.values()
    if keys < pairs:
        raise ConfigError(
            f"data.options.num_keys must be at least num_pairs={pairs}, because the keys of a "
            f"sequence differ, got {keys}"
        )
    if values < 2:
        raise ConfigError(f"data.options.num_values must be at least 2, got {values}")
    if keys + values > MAX_SYMBOLS - 16:
        raise ConfigError(
            f"data.options.num_keys + num_values must be at most {MAX_SYMBOLS - 16}, got "
            f"{keys + values}"
        )
    least = 2 * pairs + 1
    length = options["length"] or least
    if length < least:
        raise ConfigError(
            f"data.options.length must be at least {least}, for {pairs} pairs and the query, got "
            f"{length}"
        )
    return {**sizes, "length": length}


def pathfinder_settings(config: DataConfig) -> PathfinderSettings:
    """The settings of `pathfinder` at `data.image_size`."""
    size, given = config.image_size or 32, task_options(config)
    if size not in SETTINGS:
        raise ConfigError(
            f"data.image_size must be {' or '.join(map(str, SETTINGS))} for pathfinder, got {size}"
        )
    own = {name: given[name] for name in config.options if name != "seed"}
    return PathfinderSettings(**{**asdict(SETTINGS[size]), **own})
