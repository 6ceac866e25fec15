"""Trained weights that ship with saccade: their names, their folders and their checksums.

`saccade/weights/index.json` lists them all. A set of weights is a folder of `save_pretrained` in
float16, named `<variant>.<training>`. Some are part of the package, the others are in `weights/` of
the repository. Nothing is downloaded. Importing this module does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from saccade.errors import ConfigError, UnknownNameError
from saccade.io import read_json_object, sha256_file

__all__ = [
    "ENVIRONMENT",
    "Pretrained",
    "default_pretrained",
    "find_pretrained",
    "list_pretrained",
    "pretrained_folder",
]

ENVIRONMENT = "SACCADE_WEIGHTS"
"""Environment variable with a folder of further weights, such as a copy of `weights/`."""
PACKAGED = Path(__file__).parents[1] / "weights"
REPOSITORY = Path(__file__).parents[3] / "weights"
INDEX = "index.json"


@dataclass(frozen=True)
class Pretrained:
    """An entry of the index.

    Attributes:
        name: Name of the weights, such as `residual_cifar.cifar10`.
        title: What it was trained on, and how accurate it is, in one line.
        in_package: True if the weights are part of the package.
        sha256: Checksums of the files, by name.
    """

    name: str
    title: str
    in_package: bool
    sha256: Mapping[str, str]

    @property
    def variant(self) -> str:
        """The name of the model."""
        return self.name.partition(".")[0]


def list_pretrained(pattern: str = "*") -> list[str]:
    """Sorted names of the weights that match a shell pattern, such as `residual_cifar.*`."""
    return sorted(name for name in _index() if fnmatchcase(name, pattern))


def default_pretrained() -> str:
    """The weights that commands use if none are named."""
    return str(_content()["default"])


def find_pretrained(name: str) -> Pretrained:
    """The entry of a name; the name of a model stands for its first entry in the index.

    Raises:
        UnknownNameError: There are no such weights; the message suggests similar names.
    """
    known = _index()
    for entry in known.values():
        if name in {entry.name, entry.variant}:
            return entry
    raise UnknownNameError("pretrained weights", name, known)


def pretrained_folder(name: str) -> Path:
    """The folder of some weights, after its files were compared with the checksums of the index.

    Raises:
        UnknownNameError: There are no such weights.
        ConfigError: The folder is not on this machine, or a file differs from its checksum.
    """
    entry = find_pretrained(name)
    given = os.environ.get(ENVIRONMENT)
    places = [PACKAGED, *([Path(given)] if given else []), REPOSITORY]
    folder = next((place / entry.name for place in places if (place / entry.name).is_dir()), None)
    if folder is None:
        raise ConfigError(
            f"pretrained weights {entry.name!r} are not part of the package: copy weights/"
            f"{entry.name} from the repository, and set {ENVIRONMENT} to the folder that holds it"
        )
    for file, expected in entry.sha256.items():
        path = folder / file
        if not path.is_file():
            raise ConfigError(f"{str(path)!r} is missing: install saccade again")
        if (got := sha256_file(path)) != expected:
            raise ConfigError(
                f"checksum mismatch for {str(path)!r}: expected sha256 {expected}, got {got}; "
                "install saccade again, or copy the folder again"
            )
    return folder


@cache
def _content() -> Mapping[str, object]:
    return read_json_object(PACKAGED / INDEX)


@cache
def _index() -> dict[str, Pretrained]:
    rows = _content()["weights"]
    assert isinstance(rows, dict)
    return {name: Pretrained(name, **row) for name, row in rows.items()}
