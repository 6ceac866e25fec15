"""The description of an unfinished run, as its newest checkpoint recorded it.

A finished run has a manifest. Before that, each checkpoint has a file `run.json` with the run's
configuration and the SHA-256 of the other files that describe it. A run that was killed is
therefore neither resumed nor evaluated with another configuration, normalization or split.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.config import Config, differences, parse_config
from saccade.errors import ConfigError, DamagedRunError
from saccade.io import parse_json_object, read_bytes, read_json_object, sha256_file

__all__ = ["DESCRIPTIONS", "RUN", "SPLIT", "Descriptions", "describe"]

RUN = "run.json"
SPLIT = "split.json.gz"
DESCRIPTIONS = ("dataset.json", "initial.json", SPLIT)
"""Files that a run writes before its first step and never changes."""
_CONFIG, _MANIFEST = "config.yaml", "manifest.json"
_LOCAL = {"data.root"}
"""Keys that a run may change in its `config.yaml`."""
_HINT = "restore the original file, or delete the folder to train the run again"


def describe(folder: Path) -> dict[str, Any]:
    """The content of `run.json` for a run folder."""
    files = [folder / name for name in DESCRIPTIONS]
    return {
        "version": 1,
        "config": (folder / _CONFIG).read_text(encoding="utf-8"),
        "sha256": {file.name: sha256_file(file) for file in files if file.exists()},
    }


@dataclass(frozen=True)
class Descriptions:
    """The description of a run as it was at a checkpoint.

    Attributes:
        config: The configuration.
        sha256: SHA-256 of the other files, by name.
    """

    config: Config
    sha256: dict[str, str]

    @classmethod
    def read(cls, checkpoint: Path, run_id: str | None) -> Descriptions | None:
        """Read the `run.json` of a checkpoint.

        Args:
            checkpoint: Folder of the checkpoint.
            run_id: Id of the run, if known.

        Returns:
            None if the checkpoint is of another run or an older saccade, or is damaged.
        """
        path = checkpoint / RUN
        try:
            manifest = read_json_object(checkpoint / _MANIFEST)
            if run_id is not None and manifest.get("run_id") != run_id:
                return None
            content = read_bytes(path)
            if hashlib.sha256(content).hexdigest() != manifest["sha256"][RUN]:
                return None
            values = parse_json_object(content, path)
            return cls(parse_config(values["config"].encode(), path), dict(values["sha256"]))
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def check_config(self, folder: Path, config: Config) -> None:
        """Raise `DamagedRunError` if the configuration is not the one of the checkpoint."""
        if changes := differences(self.config, config, ignored=_LOCAL):
            told = f"{_CONFIG} is not what the run wrote ({', '.join(changes)})"
            raise DamagedRunError(folder, [told, _HINT])

    def check(self, folder: Path, name: str, content: bytes | None = None) -> None:
        """Raise `DamagedRunError` if a file is not the one of the checkpoint.

        Args:
            folder: The run folder.
            name: Name of the file.
            content: Content of the file; None if it is missing.
        """
        if (expected := self.sha256.get(name)) is None:
            return
        if content is None:
            raise DamagedRunError(folder, [f"{name} is missing", _HINT])
        if hashlib.sha256(content).hexdigest() != expected:
            raise DamagedRunError(folder, [f"{name} is not what the run wrote", _HINT])

    def check_all(self, folder: Path, config: Config) -> None:
        """Raise `DamagedRunError` if the configuration or a file differs from the checkpoint."""
        self.check_config(folder, config)
        for name in self.sha256:
            path = folder / name
            self.check(folder, name, read_bytes(path) if path.exists() else None)
