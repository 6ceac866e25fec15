"""What the files of a run must be: those of a finished run, and those at a checkpoint.

`manifest.json` of a finished run holds `run_id` and `files`: SHA-256 and size of each file, keyed
by the path within the folder. The last file that a run writes is `status.json`, with the state
"finished" and the SHA-256 of the manifest, so a run becomes finished in one atomic step. For a
checkpoint, only its own manifest is listed, which holds the hashes of its other files. Checkpoints
may be deleted.

Before that, each checkpoint has a file `run.json` with the run's configuration and the SHA-256 of
the other files that describe it. A run that was killed is therefore neither resumed nor evaluated
with another configuration, normalization or split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config import Config, differences, parse_config
from saccade.errors import ConfigError, DamagedRunError
from saccade.io import (
    parse_json,
    parse_json_object,
    read_bytes,
    read_json_object,
    sha256_file,
    sync,
    write_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MANIFEST = "manifest.json"
RUN = "run.json"
SPLIT = "split.json.gz"
DESCRIPTIONS = ("dataset.json", "initial.json", SPLIT)
"""Files that a run writes before its first step and never changes."""
_CONFIG = "config.yaml"
_NOT_HELD = {MANIFEST, "status.json"}
_LOCAL = {"data.root"}
"""Keys that a run may change in its `config.yaml`."""
_HINT = "restore the original file, or delete the folder to train the run again"


@dataclass(frozen=True)
class Manifest:
    """Hashes of the files of a finished run.

    Attributes:
        folder: The run folder.
        files: SHA-256 and size, keyed by path within the folder.
    """

    folder: Path
    files: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path, sha256: str) -> Manifest:
        """Read the manifest of a run.

        Args:
            folder: The run folder.
            sha256: Expected SHA-256 of the manifest, from `status.json`.

        Raises:
            DamagedRunError: The manifest is missing or has another SHA-256.
        """
        path = folder / MANIFEST
        if not path.exists():
            raise DamagedRunError(folder, [f"{MANIFEST} is missing"])
        content = read_bytes(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DamagedRunError(folder, [f"{MANIFEST} is not what the run wrote"])
        return cls(folder, parse_json(content.decode(), repr(str(path)))["files"])

    def fault(self, name: str, content: bytes | None = None) -> str | None:
        """Describe the fault of a file; None if it is intact or not in the manifest.

        Args:
            name: Path within the folder.
            content: Content of the file, if it was read already.
        """
        if (entry := self.files.get(name)) is None:
            return None
        path = self.folder / name
        if content is not None:
            found = hashlib.sha256(content).hexdigest()
        elif not path.exists():
            return f"{name} is missing"
        else:
            try:
                found = sha256_file(path)
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        return None if found == entry["sha256"] else f"{name} is not what the run wrote"

    def check(self, name: str, content: bytes | None = None) -> None:
        """Raise `DamagedRunError` if a file has a fault; arguments as for `fault`."""
        if (fault := self.fault(name, content)) is not None:
            raise DamagedRunError(self.folder, [fault])

    def faults(self) -> dict[str, str]:
        """The faults by file. A deleted checkpoint is not a fault."""
        deleted = {n for n in self.files if "/" in n and not (self.folder / n).parent.exists()}
        found = {name: self.fault(name) for name in self.files if name not in deleted}
        return {name: fault for name, fault in found.items() if fault is not None}


def write_manifest(folder: Path, run_id: str | None) -> str:
    """Sync the files of a run, write its manifest and return the manifest's SHA-256."""
    files = {}
    paths = [path for path in folder.iterdir() if _is_held(path)]
    for path in sorted([*paths, *folder.glob(f"checkpoints/step-*/{MANIFEST}")]):
        sync(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"sha256": sha256_file(path), "size": path.stat().st_size}
    text = json.dumps({"version": 1, "run_id": run_id, "files": files}, indent=2) + "\n"
    write_file(folder / MANIFEST, text)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_held(path: Path) -> bool:
    hidden = path.name.startswith((".", "damaged-"))
    return path.name not in _NOT_HELD and not hidden and path.is_file()


def contradiction(
    summary: Mapping[str, Any], predictions: Mapping[str, NDArray[Any]]
) -> str | None:
    """Describe how the summary and the predictions of a run disagree; None if they agree.

    A summary without a test accuracy is not checked.

    Args:
        summary: Content of `summary.json`.
        predictions: Content of `predictions.npz`. Images with target -1 were unreadable and are
            not counted.
    """
    if not summary:
        return "summary.json is missing"
    accuracy = summary.get("test_accuracy")
    if not isinstance(accuracy, int | float):
        return None
    if not predictions:
        return None  # the manifest shows whether the file is missing
    target, predicted = predictions.get("target"), predictions.get("predicted")
    if target is None or predicted is None or target.shape != predicted.shape:
        return "predictions.npz has no predicted class for every image"
    judged = target >= 0
    right, known = int((target == predicted)[judged].sum()), int(judged.sum())
    count = summary.get("test_count", known)
    if count != known or abs(accuracy * known - right) > 0.5:
        return (
            f"summary.json says test_accuracy {accuracy} of {count} images, predictions.npz says "
            f"{right} of {known} right"
        )
    return None


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
            manifest = read_json_object(checkpoint / MANIFEST)
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
