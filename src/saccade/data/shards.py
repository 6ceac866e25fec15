"""Read labeled images from local or remote parquet files, without a copy on disk.

The footer of a parquet file lists the rows and bytes of its row groups, and columns are stored
separately. So all labels can be read without the images. To read an image, its whole row group is
fetched; a row group is a block.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saccade.data.cache import cache_dir, write_atomically
from saccade.data.images import decode_image
from saccade.data.splits import Box
from saccade.errors import DataError
from saccade.io import locked, open_regular

__all__ = ["ShardSource", "Shards", "read_shards"]

_PINNED = re.compile(r"hf://.*@[0-9a-f]{40}/")
_CONNECTIONS = 16  # files whose labels are read concurrently


@dataclass(frozen=True)
class Group:
    """A row group of a parquet file.

    Attributes:
        shard: Index of the file in the set.
        number: Index of the row group in the file.
        start: First row of the group in the file.
        num_rows: Number of rows.
        num_bytes: Uncompressed size of the image column in bytes.
    """

    shard: int
    number: int
    start: int
    num_rows: int
    num_bytes: int


class Shards:
    """The parquet files of a set and their row groups, from their footers.

    Args:
        urls: Paths, or addresses such as `hf://datasets/user/name/train.parquet`.
        column: Name of the image column.
        metadata: pyarrow's metadata of each file.

    Attributes:
        groups: The row groups of all files.
        starts: int64 (G,), the first row of each row group, counted over all files.
    """

    def __init__(self, urls: Sequence[str], column: str, metadata: Sequence[Any]) -> None:
        self.urls, self.column, self.metadata = urls, column, metadata
        self.groups = [group for shard in range(len(urls)) for group in self._groups(shard)]
        rows = torch.tensor([group.num_rows for group in self.groups])
        self.starts = rows.cumsum(0) - rows

    @property
    def fingerprint(self) -> str:
        """A hash of the files' names and of the sizes of their row groups."""
        names = [url.replace("\\", "/").rpartition("/")[2] for url in self.urls]
        groups = [(group.shard, group.num_rows, group.num_bytes) for group in self.groups]
        return hashlib.sha256(repr((names, groups)).encode()).hexdigest()

    def _groups(self, shard: int) -> Iterator[Group]:
        start = 0
        for number in range(self.metadata[shard].num_row_groups):
            group = self.metadata[shard].row_group(number)
            columns = [group.column(i) for i in range(group.num_columns)]
            num_bytes = sum(
                column.total_uncompressed_size
                for column in columns
                if column.path_in_schema.split(".")[0] == self.column
            )
            yield Group(shard, number, start, group.num_rows, num_bytes)
            start += group.num_rows

    def read(self, group: Group, rows: Sequence[int]) -> list[bytes]:
        """Return the encoded images in rows of a row group; b"" for a row without an image."""
        with _opened(self.urls[group.shard], self.metadata[group.shard]) as file:
            table = file.read_row_group(group.number, columns=[self.column])
        column = table.column(0).combine_chunks()
        content = column.field("bytes") if hasattr(column, "field") else column
        return [content[row].as_py() or b"" for row in rows]


@dataclass(frozen=True)
class ShardSource:
    """Images of parquet files; a block is a row group.

    Attributes:
        shards: The files.
        rows: int64 (N,), the row of each image, counted over all files; ascending.
        size: Side in pixels of the square images that are returned.
        max_bad_images: Number of unreadable images that may be skipped.
        buffer_bytes: Maximum bytes of encoded images in memory.
    """

    shards: Shards
    rows: Tensor
    size: int
    max_bad_images: int
    buffer_bytes: int

    @cached_property
    def blocks(self) -> Tensor:
        """int64 (N,), the row group of each image."""
        return torch.searchsorted(self.shards.starts, self.rows, right=True) - 1

    @cached_property
    def image_bytes(self) -> Tensor:
        """float64 (N,), for each image the mean encoded size in its row group, in bytes."""
        means = [group.num_bytes / max(1, group.num_rows) for group in self.shards.groups]
        return torch.tensor(means, dtype=torch.float64)[self.blocks]

    def fetch(self, index: Sequence[int]) -> list[bytes]:
        """Return the encoded images at positions that are all in one row group."""
        block = self.blocks[index[0]]
        rows = self.rows[torch.tensor(index)] - self.shards.starts[block]
        return self.shards.read(self.shards.groups[block], rows.tolist())

    def decode(self, index: int, content: bytes, box: Box | None = None) -> Tensor:
        """Decode a fetched image to uint8 (3, size, size)."""
        block = self.blocks[index]
        group = self.shards.groups[block]
        row = int(self.rows[index] - self.shards.starts[block]) + group.start
        return decode_image(content, f"{self.shards.urls[group.shard]} row {row}", self.size, box)

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Return image `index` as uint8 (3, size, size); its whole row group is fetched."""
        return self.decode(index, self.fetch([index])[0], box)

    def placeholder(self) -> Tensor:
        """A black image."""
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def select(self, index: Tensor) -> ShardSource:
        """Return the source of a subset of the images."""
        return replace(self, rows=self.rows[index])


def read_shards(urls: Sequence[str], image: str, label: str) -> tuple[Shards, Tensor]:
    """Open parquet files and read their labels without their images.

    Reading labels takes one request per row group, so those of a pinned revision are cached.

    Args:
        urls: The files.
        image: Name of the image column.
        label: Name of the label column.

    Returns:
        The files, and the labels as int64 (N,), with -1 for a missing label.
    """

    def read_footer(url: str) -> Any:
        with _opened(url) as file:
            return file.metadata

    def read_labels(url: str, metadata: Any) -> np.ndarray:
        with _opened(url, metadata) as file:
            column = file.read(columns=[label]).column(0)
            return np.asarray(column.fill_null(-1).to_numpy(), dtype=np.int64)

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        metadata = list(pool.map(read_footer, urls))
        labels = _cached_labels(
            [f"{url}#{label}" for url in urls],
            lambda: torch.from_numpy(np.concatenate([*pool.map(read_labels, urls, metadata)])),
        )
    return Shards(urls, image, metadata), labels


def _cached_labels(names: Sequence[str], read: Callable[[], Tensor]) -> Tensor:
    """Return labels from the user's cache, or read and cache them; other processes wait.

    Labels are cached only if all files, of which `names` has the addresses and the column, belong
    to a revision of the hub, which cannot change.
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


@contextmanager
def _opened(url: str, metadata: Any = None) -> Iterator[Any]:
    """Open a parquet file so that only the requested parts are fetched."""
    import fsspec
    import pyarrow.parquet as parquet

    try:
        files, path = fsspec.core.url_to_fs(url)
        with files.open(path, "rb", cache_type="none") as file:
            yield parquet.ParquetFile(file, metadata=metadata, pre_buffer=True)
    except Exception as error:  # errors of pyarrow, the hub and the network
        raise DataError(f"{url} cannot be read: {' '.join(str(error).split())}") from None
