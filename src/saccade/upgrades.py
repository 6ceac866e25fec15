"""Convert configurations that older versions of saccade saved.

A saved model or run keeps its behavior. If a later version changes the defaults of a variant or the
meaning of an option, reading an older configuration sets the former values explicitly.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = [
    "CONFIG_VERSION",
    "RENAMED",
    "former_attention_options",
    "former_overrides",
    "given_twice",
    "renamed",
]

CONFIG_VERSION = 2
"""Version of run configurations and of the `config.json` of saved models."""

RENAMED = {"value_conv": "local_conv"}
"""Present names of fields of a model, and of parts of its tensors' names, by their former ones."""

_VARIANTS_OF_1: dict[str, dict[str, Any]] = {
    "taylorir_*": {
        "norm_eps": 1e-6,
        "pos_drop_rate": 0.0,
        "proj_drop_rate": 0.0,
        "attn_drop_rate": 0.0,
    },
    "taylorshift_*": {"no_embed_class": False},
    "light_vit": {"norm_eps": 1e-6},
    "vit_micro_patch4_32": {"norm_eps": 1e-6, "act": "gelu", "act_drop_rate": None},
}
"""Field values of variants in version 1, by name pattern, where they differ from today's."""


def former_overrides(variant: str, version: int) -> dict[str, Any]:
    """Fields of a variant whose values were different in `version`, with those values."""
    if version >= CONFIG_VERSION:
        return {}
    patterns = (pattern for pattern in _VARIANTS_OF_1 if fnmatchcase(variant, pattern))
    return {field: value for name in patterns for field, value in _VARIANTS_OF_1[name].items()}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a model under their present names."""
    return {RENAMED.get(key, key): value for key, value in values.items()}


def given_twice(values: Mapping[str, Any]) -> str:
    """What is wrong if a field is given under its present and its former name; else empty."""
    for old, new in RENAMED.items():
        if old in values and new in values:
            return f"{new} must be given once, got it and {old}, its former name; remove {old}"
    return ""


def former_attention_options(options: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Attention options that have today the meaning of `options` in `version`.

    In version 1, `normalize_input=False` kept the temperature.
    """
    if version >= CONFIG_VERSION or options.get("normalize_input") is not False:
        return dict(options)
    return {"temperature": True, **options}
