"""The configuration of a run: its sections and keys, and building it from YAML and overrides."""

from __future__ import annotations

from saccade.config.load import (
    Config,
    differences,
    dump_config,
    keys_called,
    list_recipes,
    load_config,
    make_config,
    parse_config,
    recipe_text,
    similar_keys,
    with_overrides,
    with_values,
)
from saccade.config.sections import (
    AugmentConfig,
    DataConfig,
    InitConfig,
    ModelConfig,
    OptimConfig,
    Range,
    RunConfig,
    SearchSpace,
    TrainConfig,
    TuneConfig,
)
from saccade.upgrades import CONFIG_VERSION

__all__ = [
    "CONFIG_VERSION",
    "AugmentConfig",
    "Config",
    "DataConfig",
    "InitConfig",
    "ModelConfig",
    "OptimConfig",
    "Range",
    "RunConfig",
    "SearchSpace",
    "TrainConfig",
    "TuneConfig",
    "differences",
    "dump_config",
    "keys_called",
    "list_recipes",
    "load_config",
    "make_config",
    "parse_config",
    "recipe_text",
    "similar_keys",
    "with_overrides",
    "with_values",
]
