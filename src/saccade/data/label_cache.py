"""The labels of a revision of a hub set, kept so that only its first use has to fetch them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saccade.data.cache import cache_dir, write_atomically

__all__ = ["kept_labels"]

_PINNED = re.compile(r"hf://.*@[0-9a-f]{40}/")


def kept_labels(names: Sequence[str], read: Callable[[], Tensor]) -> Tensor:
    """Labels from the user's cache, else by reading them; other processes wait meanwhile.

    Args:
        names: What they are the labels of. Only those of a revision of the hub, which cannot
            change, are kept.
        read: Fetches them.
    """
    from filelock import FileLock

    if not all(_PINNED.match(name) for name in names):
        return read()
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    path = cache_dir() / "labels" / f"{digest}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            labels = _stored(path)
            if labels is None:
                labels = read()
                write_atomically(path, save({"labels": labels}))
            return labels
    except OSError:  # the cache cannot be written to
        return read()


def _stored(path: Path) -> Tensor | None:
    try:
        return load(path.read_bytes())["labels"]
    except (OSError, SafetensorError, KeyError):
        return None
