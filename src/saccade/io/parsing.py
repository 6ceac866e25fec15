"""Parse JSON and YAML; size, depth and item count are checked before objects are built."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saccade.errors import ConfigError, SaccadeError, shorten

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


def parse_yaml(text: str, source: str, *, limits: Limits = CONFIG_LIMITS) -> Any:
    """Parse a YAML text; duplicate keys are an error. Arguments as for `parse_json`."""
    from saccade.io.yaml_text import parse  # imports PyYAML

    return parse(text, source, limits)


_KEY = "sha256"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The object with the SHA-256 of its other values under `sha256`."""
    own = unsealed(values)
    return {**own, _KEY: _digest(own)}


def unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its hash."""
    return {key: value for key, value in values.items() if key != _KEY}


def is_unchanged(values: Mapping[str, Any]) -> bool:
    """True if an object has the values that it was sealed with, or no hash."""
    return _KEY not in values or values[_KEY] == _digest(unsealed(values))


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


JOINERS = "\u200c\u200d"  # join Persian and Indic letters and emoji; they do not reorder text
UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of control characters and of invisible or unassigned characters."""


def escape_for_terminal(text: str) -> str:
    """Escape control, bidirectional and other invisible characters in a text.

    Without this, the name of a class or file could change terminal colors, set the window title,
    write to the clipboard (OSC sequences) or reorder the displayed text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character in JOINERS or unicodedata.category(character) not in UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
