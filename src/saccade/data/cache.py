"""The user's cache: a decoded or generated data set in memory-mapped safetensors files.

The folder is `$SACCADE_DATA`, else `$XDG_CACHE_HOME/saccade`, else `~/.cache/saccade`. A file is
written under a temporary name, synced and renamed, so a file with its final name is complete. The
process that writes a data set holds its lock, `.NAME.safetensors.lock`. The metadata has the hash
of the arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from saccade import io
from saccade.errors import DataError, writing_error

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Arrays",
    "cache_dir",
    "cache_path",
    "exists_safely",
    "is_cached",
    "locked",
    "read_arrays",
    "read_cache",
    "read_cached_arrays",
    "remove_leftovers",
    "write_arrays",
    "write_atomically",
    "write_cache",
]

_REFETCH = "delete it, or fetch with --force"
_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Arrays:
    """A decoded data set with an official test set.

    Attributes:
        train_images: uint8 (N, C, H, W), as is `test_images`.
        train_labels: int64 (N,), as is `test_labels`.
        class_names: Names of the classes, in the order of the labels.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]

    def sha256(self) -> str:
        """Checksum of shapes, images and labels; the same for every source of a data set."""
        return _sha256({part: getattr(self, part).numpy() for part in _PARTS})


def cache_dir() -> Path:
    """Return the folder of the cache, which may not exist yet.

    Raises:
        DataError: The path starts with `~` and the home folder is unknown.
    """
    own = os.environ.get("SACCADE_DATA")
    folder = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "saccade"
    try:
        return folder.expanduser()
    except RuntimeError:
        raise DataError(
            f"the home folder in the data cache path {folder} is unknown: set SACCADE_DATA to a "
            "folder"
        ) from None


def cache_path(name: str) -> Path:
    """Return the cache file of the data set `name`."""
    return cache_dir() / f"{name}.safetensors"


def is_cached(path: Path) -> bool:
    """True if a file or folder exists.

    Raises:
        DataError: The path cannot be accessed, for example for lack of permission.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return True


def exists_safely(test: Callable[[], bool]) -> bool:
    """Call `exists`, `is_file` or `is_dir` of a path; False if the path cannot be accessed."""
    try:
        return test()
    except OSError:
        return False


def write_cache(path: Path, arrays: Arrays, source: str) -> None:
    """Store a data set and where it came from, `source`."""
    metadata = {
        "class_names": json.dumps(arrays.class_names),
        "names_sha256": _names_sha256(arrays.class_names),
        "source": source,
    }
    write_arrays(path, {part: getattr(arrays, part) for part in _PARTS}, metadata)


def read_cache(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Memory-map a stored data set and return it with its metadata (`sha256`, `source`).

    Raises:
        DataError: The file cannot be read, or its checksum does not match.
    """
    parts, names, metadata = _read(path, "pt")
    return Arrays(**parts, class_names=names), metadata


def read_cached_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Read a stored data set as `read_cache` does, but as NumPy arrays by part, without torch."""
    parts, names, _ = _read(path, "np")
    return parts, names


def _read(path: Path, framework: str) -> tuple[dict[str, Any], tuple[str, ...], dict[str, str]]:
    parts, metadata = read_arrays(path, framework, parts=_PARTS, keys=("class_names", "source"))
    images = np.asarray(parts["train_images"])
    if images.dtype != np.uint8:
        raise DataError(f"{path}: images must be uint8, got {images.dtype}")
    names = _class_names(path, metadata["class_names"])
    if metadata.get("names_sha256") not in {None, _names_sha256(names)}:  # older files have none
        raise DataError(f"{path} is damaged: {_REFETCH}")
    return parts, names, metadata


def _class_names(path: Path, text: str) -> tuple[str, ...]:
    try:
        return tuple(map(str, io.parse_json(text, "class_names")))
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is not a complete data set ({error}): {_REFETCH}") from None


def write_arrays(path: Path, arrays: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Store tensors with their hash; see `read_arrays`."""
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in arrays.items()}
    sha256 = _sha256({name: tensors[name].numpy() for name in tensors})
    write_atomically(path, save(tensors, {"sha256": sha256, **metadata}))


def read_arrays(
    path: Path,
    framework: str,
    *,
    parts: Sequence[str] = (),
    keys: Sequence[str] = (),
    repair: str = _REFETCH,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Memory-map a file of `write_arrays` and check its hash.

    Args:
        path: The file.
        framework: `pt` for tensors, `np` for NumPy arrays.
        parts: Names of the arrays, in the order of the hash; default: all, sorted.
        keys: Metadata that the file must have.
        repair: What to do about a damaged file, for the message.

    Raises:
        DataError: The file is incomplete or damaged.
    """
    try:
        io.check_regular(path)
        with safe_open(path, framework=framework) as file:
            metadata: dict[str, str] = file.metadata()
            arrays = {name: file.get_tensor(name) for name in parts or sorted(file.keys())}
            sha256, *_ = [metadata[key] for key in ("sha256", *keys)]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a complete data set ({error}): {repair}") from None
    if _sha256({name: np.asarray(values) for name, values in arrays.items()}) != sha256:
        raise DataError(f"{path} is damaged: {repair}")
    return arrays, metadata


def _sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, values in arrays.items():
        array = np.ascontiguousarray(values)
        digest.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def _names_sha256(names: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a complete file or none, with permissions from the umask.

    The file is written under a temporary name, synced and renamed.

    Raises:
        FullDiskError: The disk is full.
        DataError: The file cannot be written for another reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        io.write_file(path, content)
    except OSError as error:
        raise writing_error(f"cannot write {path}", error, DataError) from None


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file during a `with` block, so that no other process writes the file.

    Args:
        path: The file. Its folder is created if it is missing.
        on_wait: Called before waiting for another process that holds the lock.

    Raises:
        FullDiskError: The disk is full.
        DataError: The lock cannot be written for another reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = io.locked(path.with_name(f".{path.name}.lock"), on_wait)
        held.__enter__()
    except OSError as error:
        raise writing_error(f"cannot write {path}", error, DataError) from None
    try:
        yield
    finally:
        held.__exit__(None, None, None)


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of `path` that were left by killed processes."""
    io.remove_leftovers(path.parent, path.name)
