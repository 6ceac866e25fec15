"""What the folders of comparisons and searches have in common. Workers share nothing else.

study.json   what defines the study, with the SHA-256 of itself and of base.yaml
base.yaml    the configuration that all runs share
attempts/    when a worker began a run, and how the attempt ended
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from saccade.config import Config, parse_config
from saccade.errors import ConfigError
from saccade.io import (
    CONFIG_LIMITS,
    is_unchanged,
    read_bytes,
    read_json_object,
    sealed,
    unsealed,
    write_json,
)
from saccade.study.attempts import Attempts

__all__ = ["UNCHECKED", "StudyFolder", "kind_of", "sha256_text"]

UNCHECKED = "study.json has no hash of base.yaml, so base.yaml cannot be checked"

Kind = Literal["compare", "tune"]


class StudyFolder:
    """A study on disk."""

    kind: ClassVar[Kind]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def exists(self) -> bool:
        """True if the folder holds a study."""
        return (self.path / "study.json").is_file()

    @cached_property
    def attempts(self) -> Attempts:
        """Attempts at each run."""
        return Attempts(self.path / "attempts")

    def read(self, name: str, hint: str = "restore it") -> dict[str, Any]:
        """Read one of the JSON files; `hint` says what to do if it was changed."""
        path = self.path / name
        values = read_json_object(path)
        if not is_unchanged(values):
            raise ConfigError(f"{str(path)!r} was changed after it was written; {hint}")
        return unsealed(values)

    def write(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Replace one of the JSON files, atomically; return its content with the hash."""
        content = sealed(values)
        write_json(self.path / name, content)
        return content

    def read_base(self, hashes: Sequence[str]) -> Config:
        """Read `base.yaml`, which must have one of the hashes; earlier versions wrote none."""
        path = self.path / "base.yaml"
        content = read_bytes(path, limit=CONFIG_LIMITS.size)
        if hashes and hashlib.sha256(content).hexdigest() not in hashes:
            raise ConfigError(f"{str(path)!r} was changed after it was written; restore it")
        return parse_config(content, path)


def kind_of(path: Path) -> Kind:
    """The kind of the study in a folder, as `study.json` says."""
    return "tune" if read_json_object(path / "study.json").get("kind") == "tune" else "compare"


def sha256_text(text: str) -> str:
    """The SHA-256 of a text file."""
    return hashlib.sha256(text.encode()).hexdigest()
