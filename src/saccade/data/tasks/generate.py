"""Generate the items of a task in several processes, and keep them in the user's cache.

The file of a part is `NAME-HASH-PART-COUNT.safetensors`; the hash is that of the options and of the
version of the generator. It holds the hash of its arrays.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saccade import io
from saccade.data.cache import cache_dir, is_cached, locked, remove_leftovers, write_atomically
from saccade.errors import DataError

__all__ = ["generated", "make_items"]

_log = logging.getLogger(__name__)
_CHUNK = 1024
Make = Callable[[int, int], Mapping[str, Any]]
"""The items from a position to another, as NumPy arrays by name."""


class _Chunks(Dataset[dict[str, Tensor]]):
    """Chunks of items; a worker process makes one at a time."""

    def __init__(self, make: Make, count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return -(-self._count // _CHUNK)

    def __getitem__(self, chunk: int) -> dict[str, Tensor]:
        found = self._make(chunk * _CHUNK, min(self._count, (chunk + 1) * _CHUNK))
        return {name: torch.from_numpy(array) for name, array in found.items()}


def make_items(make: Make, count: int, workers: int) -> dict[str, Tensor]:
    """Items 0 to `count`; the same for any number of worker processes."""
    chunks = _Chunks(make, count)
    processes = min(workers, len(chunks), os.cpu_count() or 1) if len(chunks) > 1 else 0
    loader = DataLoader(chunks, batch_size=None, num_workers=processes)
    parts = [{name: tensor.clone() for name, tensor in part.items()} for part in loader]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def generated(
    name: str, part: str, count: int, make: Make, *, options: Mapping[str, Any], workers: int
) -> dict[str, Tensor]:
    """Items 0 to `count` of a part from the cache; they are generated once.

    Args:
        name: Name of the data set.
        part: `train` or `test`.
        count: Number of items.
        make: The generator.
        options: Everything that the items depend on.
        workers: Number of processes; 0 generates in this one.

    Raises:
        DataError: The file cannot be written, or is damaged.
    """
    spec = json.dumps({"name": name, "part": part, **options}, sort_keys=True)
    digest = hashlib.sha256(spec.encode()).hexdigest()[:12]
    path = cache_dir() / f"{name}-{digest}-{part}-{count}.safetensors"
    if is_cached(path):
        return _read(path, spec, count)
    with locked(path, lambda: _log.warning("waiting for another process that writes %s", path)):
        if is_cached(path):
            return _read(path, spec, count)
        remove_leftovers(path)
        _log.info("generating %d items of %s (%s) into %s", count, name, part, path)
        items = make_items(make, count, workers)
        _check_distinct(items, name)
        metadata = {"sha256": _sha256(items), "options": spec}
        write_atomically(path, save(items, metadata))
    return _read(path, spec, count)


def _check_distinct(items: Mapping[str, Tensor], name: str) -> None:
    """Raise if two items are the same, which tiny options of a task can bring about."""
    rows = items["symbols"].contiguous()
    flat = rows.view(len(rows), -1).numpy()
    hashes = {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat}
    if len(hashes) != len(flat):
        raise DataError(
            f"{name}: {len(flat) - len(hashes)} of {len(flat)} items are copies of others: choose "
            "larger data.options, or fewer items by data.num_train and data.num_test"
        )


def _read(path: Path, spec: str, count: int) -> dict[str, Tensor]:
    """The items in a file, which must be `count` items of what `spec` says."""
    try:
        io.check_regular(path)
        with safe_open(path, framework="pt") as file:
            metadata = cast(dict[str, str], file.metadata())
            items = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            stored, options = metadata["sha256"], metadata["options"]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not a complete data set ({error}): delete it, to generate it again"
        ) from None
    if _sha256(items) != stored:
        raise DataError(f"{path} is damaged: delete it, to generate it again")
    if options != spec or any(len(array) != count for array in items.values()):
        raise DataError(f"{path} holds other items: delete it, to generate it again")
    return items


def _sha256(items: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(items):
        array = items[name].contiguous().numpy()
        digest.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
        digest.update(array.reshape(-1).view("u1").data)
    return digest.hexdigest()
