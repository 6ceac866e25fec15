"""A hash stored inside the JSON object that it protects, so that later edits are detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["is_unchanged", "sealed", "unsealed"]

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
