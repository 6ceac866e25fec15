"""The user's cache: a decoded data set is one memory-mapped safetensors file.

`$SACCADE_DATA`, else `$XDG_CACHE_HOME/saccade`, else `~/.cache/saccade`. A file is written under a
temporary name, synced and renamed, so that a file that has its name is whole. Who writes a data set
holds its lock, `.NAME.safetensors.lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from saccade.errors import DataError, writing_error

__all__ = [
    "Arrays",
    "cache_dir",
    "cache_path",
    "is_there",
    "locked",
    "read_cache",
    "remove_leftovers",
    "write_atomically",
    "write_cache",
]

_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True)
class Arrays:
    """A decoded data set with an official test set.

    Attributes:
        train_images: uint8 (N, C, H, W), as is `test_images`.
        train_labels: int64 (N,), as is `test_labels`.
        class_names: In the order of the labels.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]

    def sha256(self) -> str:
        """Checksum of shapes, images and labels: equal for every source of the same data set."""
        digest = hashlib.sha256()
        for part in _PARTS:
            array = getattr(self, part).contiguous().numpy()
            digest.update(f"{part} {array.shape} {array.dtype.str}\n".encode())
            digest.update(memoryview(array).cast("B"))
        return digest.hexdigest()


def cache_dir() -> Path:
    """The folder of the cache, which need not exist yet.

    Raises:
        DataError: It is in a home that the system does not know.
    """
    own = os.environ.get("SACCADE_DATA")
    folder = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "saccade"
    try:
        return folder.expanduser()
    except RuntimeError:
        raise DataError(
            f"the data cache {folder} is in no home that is known: set SACCADE_DATA to a folder"
        ) from None


def cache_path(name: str) -> Path:
    """Where the data set `name` is kept."""
    return cache_dir() / f"{name}.safetensors"


def is_there(path: Path) -> bool:
    """Whether there is a file or folder.

    Raises:
        DataError: The folder it would be in cannot be looked into.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return True


def write_cache(path: Path, arrays: Arrays, source: str) -> None:
    """Store a data set.

    Args:
        path: The file; its folder is made where it is missing.
        arrays: The data set.
        source: Where it came from, for the record.
    """
    metadata = {
        "sha256": arrays.sha256(),
        "class_names": json.dumps(arrays.class_names),
        "source": source,
    }
    tensors = {part: getattr(arrays, part).contiguous() for part in _PARTS}
    write_atomically(path, save(tensors, metadata))


def read_cache(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Map a stored data set into memory; also its metadata (`sha256`, `source`).

    Raises:
        DataError: It cannot be read, or its content is not what was stored.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {part: file.get_tensor(part) for part in _PARTS}
            names = tuple(json.loads(metadata["class_names"]))
            stored, _ = metadata["sha256"], metadata["source"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not a whole data set ({error}): delete it, fetch again"
        ) from None
    if tensors["train_images"].dtype != torch.uint8:
        raise DataError(f"{path}: images of {tensors['train_images'].dtype}, wants uint8")
    arrays = Arrays(**tensors, class_names=names)
    if arrays.sha256() != stored:
        raise DataError(f"{path} is damaged: delete it, or fetch with --force")
    return arrays, metadata


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none, for whom the umask says: temporary name, sync, rename.

    Raises:
        FullDiskError: The disk is full.
        DataError: The file cannot be written for another reason.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise writing_error(f"cannot write {path}", error, DataError) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Keep other processes from writing a file for the length of a block.

    Args:
        path: The file; its folder is made where it is missing.
        on_wait: Called where another process holds the lock, before waiting for it.

    Raises:
        FullDiskError: The disk is full.
        DataError: The lock cannot be written for another reason.
    """
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f".{path.name}.lock").open("a")
    except OSError as error:
        raise writing_error(f"cannot write {path}", error, DataError) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_leftovers(path: Path) -> None:
    """Delete what killed processes left of a file; its lock has to be held."""
    for temporary in path.parent.glob(f".{path.name}.{'[0-9a-f]' * 32}"):
        with suppress(OSError):
            temporary.unlink()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
