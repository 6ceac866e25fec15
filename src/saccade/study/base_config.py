"""`base.yaml`, the configuration that all runs of a study share, and its hash in `study.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from saccade.config import Config, parse_config
from saccade.errors import ConfigError
from saccade.io import CONFIG_LIMITS, read_bytes

__all__ = ["UNCHECKED", "read_base", "sha256_text"]

UNCHECKED = "study.json has no hash of base.yaml, so base.yaml cannot be checked"


def read_base(path: Path, hashes: Sequence[str]) -> Config:
    """Read `base.yaml`.

    Args:
        path: The file.
        hashes: The SHA-256 that it may have; none in studies of earlier versions.

    Raises:
        ConfigError: The file is missing, was changed after it was written, or is not valid.
    """
    content = read_bytes(path, limit=CONFIG_LIMITS.size)
    if hashes and hashlib.sha256(content).hexdigest() not in hashes:
        raise ConfigError(f"{str(path)!r} was changed after it was written; restore it")
    return parse_config(content, path)


def sha256_text(text: str) -> str:
    """The SHA-256 of a text file."""
    return hashlib.sha256(text.encode()).hexdigest()
