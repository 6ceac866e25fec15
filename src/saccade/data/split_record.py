"""The record of a run's split: the images it was trained, validated and tested on.

The file is gzipped JSON, `{"version": 1, "parts": {"train": ..., "val": ..., "test": ...}}`. For a
folder, a part has `names`, relative to the folder, and `sha256`, the first 16 digits of each file's
SHA-256. `unused` lists the images that are in no part. For other sets, a part has a `count` and one
`sha256` of labels and images.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from saccade.data.images import hash_file
from saccade.data.splits import Split, Splits
from saccade.errors import ConfigError
from saccade.io import Limits, parse_json

__all__ = ["PARTS", "PartRecord", "SplitRecord", "describe_part", "hash_images", "record_split"]

PARTS = ("train", "val", "test")
_VERSION = 1
_DIGITS = 16
_MAX_BYTES = 1 << 30
_MAX_RATIO = 200  # names and hashes of images compress to a twentieth at best
_HASHERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class PartRecord:
    """One part of a split.

    Attributes:
        count: Number of images.
        names: Image names of a folder, in the order of the split; empty for other sets.
        hashes: The hash of each named file, or "" if it could not be read. For other sets, one hash
            of all labels and images.
    """

    count: int
    names: tuple[str, ...]
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class SplitRecord:
    """The parts of a split by name, and the names of a folder's images that are in no part."""

    parts: Mapping[str, PartRecord]
    unused: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Image names by part; empty if the set is not a folder."""
        named = {part: record.names for part, record in self.parts.items()}
        return named if any(named.values()) else {}

    def encode(self) -> bytes:
        """Encode the record as gzipped JSON."""
        parts = {
            part: {"names": record.names, "sha256": record.hashes}
            if record.names
            else {"count": record.count, "sha256": "".join(record.hashes)}
            for part, record in self.parts.items()
        }
        values = {"version": _VERSION, "parts": parts, "unused": self.unused}
        text = json.dumps(values, separators=(",", ":"))
        return gzip.compress(text.encode(), compresslevel=6, mtime=0)

    @classmethod
    def decode(cls, content: bytes, source: str) -> SplitRecord:
        """Decode a record that `encode` wrote.

        Raises:
            ConfigError: The content is not such a record.
        """
        try:
            reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            text = reader.decompress(content, min(_MAX_BYTES, _MAX_RATIO * len(content)))
            if not reader.eof:
                raise ValueError("it is cut short or too large")
            limits = Limits(size=_MAX_BYTES, depth=4, items=len(content) + 1000)
            values = parse_json(text.decode(), source, limits=limits)
            if values["version"] > _VERSION:
                raise ConfigError(f"{source} was written by a newer saccade: upgrade to use it")
            parts = {part: _decode_part(values["parts"][part]) for part in PARTS}
            return cls(parts, tuple(map(str, values["unused"])))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            zlib.error,
        ) as error:
            if isinstance(error, ConfigError):
                raise
            reason = " ".join(str(error).split())[:100]
            raise ConfigError(f"{source} is not the record of a split: {reason}") from None


def _decode_part(values: Mapping[str, Any]) -> PartRecord:
    if "names" not in values:
        count, digest = values["count"], values["sha256"]
        if type(count) is not int or not isinstance(digest, str):
            raise ValueError("count must be an integer and sha256 a string")
        return PartRecord(count, (), (digest,))
    names, hashes = tuple(values["names"]), tuple(values["sha256"])
    if len(names) != len(hashes) or not all(isinstance(word, str) for word in (*names, *hashes)):
        raise ValueError("names and sha256 must be lists of strings of equal length")
    return PartRecord(len(names), names, hashes)


def record_split(splits: Splits) -> SplitRecord:
    """Make the record of a split; every image file is read once."""
    parts = {part: describe_part(getattr(splits, part)) for part in PARTS}
    return SplitRecord(parts, splits.unused)


def describe_part(split: Split) -> PartRecord:
    """Make the record of one part from its current images."""
    files = split.files
    if files is None or not len(split):
        return PartRecord(len(split), (), (_digest(split),))
    left_out = [item for item in split.left_out if item.name]
    names = (*files.names, *(item.name for item in left_out))
    paths = (*files.paths, *(item.path for item in left_out))
    return PartRecord(len(names), names, tuple(hash_images(paths)))


def hash_images(paths: Iterable[str]) -> list[str]:
    """Return the hash of each file, or "" if it cannot be read."""
    with ThreadPoolExecutor(_HASHERS) as pool:
        return [digest[:_DIGITS] for digest in pool.map(hash_file, map(Path, paths))]


def _digest(split: Split) -> str:
    """Return one hash of a part without files, from its labels and, if reproducible, its images.

    The split's `fingerprint` replaces images that are drawn by a formula, which the configuration
    determines. It also replaces decoded images, whose pixels depend on the decoder's version.
    """
    digest = hashlib.sha256(f"{len(split)} {split.fingerprint}\n".encode())
    digest.update(_bytes(split.labels))
    if split.origin is not None:
        digest.update(_bytes(split.origin))
    if split.lengths is not None:
        digest.update(_bytes(split.lengths))
    if split.images is not None and not split.fingerprint and len(split):
        digest.update(f"{tuple(split.images.shape)}\n".encode())
        digest.update(_bytes(split.images))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().numpy().reshape(-1).view("u1").data
