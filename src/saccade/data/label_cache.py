"""A cache for the labels of hub sets, which fetches those of a pinned revision only once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saccade.data.cache import cache_dir, write_atomically
from saccade.io import locked, open_regular

__all__ = ["cached_labels"]

_PINNED = re.compile(r"hf://.*@[0-9a-f]{40}/")


def cached_labels(names: Sequence[str], read: Callable[[], Tensor]) -> Tensor:
    """Return labels from the user's cache, or read and cache them.

    Other processes wait while the labels are read.

    Args:
        names: Files and columns of the labels. Labels are cached only if all files belong to a
            revision of the hub, which cannot change.
        read: Fetches the labels.
    """
    if not all(_PINNED.match(name) for name in names):
        return read()
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    path = cache_dir() / "labels" / f"{digest}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock"), lambda: None):
            labels = _stored(path)
            if labels is None:
                labels = read()
                write_atomically(path, save({"labels": labels}))
            return labels
    except OSError:  # the cache cannot be written to
        return read()


def _stored(path: Path) -> Tensor | None:
    try:
        with open_regular(path) as file:
            return load(file.read())["labels"]
    except (OSError, SafetensorError, KeyError):
        return None
