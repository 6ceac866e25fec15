"""Parse JSON and YAML; size, depth and item count are checked before objects are built."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from saccade.errors import ConfigError, SaccadeError, shorten

__all__ = ["CONFIG_LIMITS", "RECORD_LIMITS", "Limits", "parse_json", "parse_yaml"]

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits for a text.

    Attributes:
        size: Maximum bytes. For YAML, also the maximum characters with aliases expanded.
        depth: Maximum nesting of lists and mappings.
        items: Maximum number of values, lists and mappings. For YAML, keys count too and aliases
            are expanded.
    """

    size: int
    depth: int
    items: int


CONFIG_LIMITS = Limits(size=1 * MIB, depth=32, items=20_000)
"""For text that people write, such as recipes and `config.yaml`."""
RECORD_LIMITS = Limits(size=64 * MIB, depth=64, items=2_000_000)
"""For JSON that saccade itself writes."""


# Possessive quantifiers keep the match linear in the text length; an unclosed string ends it.
_JSON_STRING = re.compile(r'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


def parse_json(
    text: str,
    source: str,
    *,
    limits: Limits = RECORD_LIMITS,
    kind: type[SaccadeError] = ConfigError,
) -> Any:
    """Parse a JSON text.

    Args:
        text: The text.
        source: Name of its origin, for the start of error messages.
        limits: Size limits.
        kind: Exception class to raise.
    """
    openings = text.count("[") + text.count("{")
    if openings > limits.depth or openings + text.count(",") > limits.items:
        bare = _JSON_STRING.sub("", text)
        if _json_depth(bare) > limits.depth:
            raise kind(f"{source} is nested too deeply: more than {limits.depth} levels")
        if bare.count("[") + bare.count("{") + bare.count(",") > limits.items:
            raise kind(f"{source} is too large: more than {limits.items} values")
    try:
        return json.loads(text)
    except ValueError as error:
        raise kind(f"{source} is not valid JSON: {shorten(str(error), 200)}") from None


def _json_depth(bare: str) -> int:
    depth = deepest = 0
    for bracket in re.sub(r"[^\[\]{}]+", "", bare):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def parse_yaml(
    text: str,
    source: str,
    *,
    limits: Limits = CONFIG_LIMITS,
    kind: type[SaccadeError] = ConfigError,
) -> Any:
    """Parse a YAML text; duplicate keys are an error. Arguments as for `parse_json`."""
    from saccade.io.yaml_text import parse  # imports PyYAML

    return parse(text, source, limits=limits, kind=kind)
