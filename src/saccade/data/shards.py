"""Labelled images in parquet files, here or on the hub, without a copy on the disk.

A parquet file says at its end how many rows and bytes each of its row groups has, and keeps every
column apart. So the labels of a whole set can be read without its images, and an image can be had
by reading the row group it lies in, its block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.data.images import decode_image
from saccade.data.label_cache import kept_labels
from saccade.data.splits import Box
from saccade.errors import DataError

__all__ = ["ShardSource", "Shards", "read_shards"]

_CONNECTIONS = 16  # files whose labels are read at once


@dataclass(frozen=True)
class Group:
    """A row group of a parquet file.

    Attributes:
        shard: The file, among those of the set.
        number: The row group, among those of the file.
        start: Its first row, among those of the file.
        num_rows: How many rows it has.
        num_bytes: How many bytes the encoded images in them take.
    """

    shard: int
    number: int
    start: int
    num_rows: int
    num_bytes: int


class Shards:
    """The parquet files of a set, by what they say at their ends.

    Args:
        urls: Paths, or addresses such as `hf://datasets/user/name/train.parquet`.
        column: The column of the images.
        metadata: What each file says, as pyarrow has it.

    Attributes:
        groups: The row groups of all files.
        starts: int64 (G,), the first row of each, among those of all files.
    """

    def __init__(self, urls: Sequence[str], column: str, metadata: Sequence[Any]) -> None:
        self.urls, self.column, self.metadata = urls, column, metadata
        self.groups = [group for shard in range(len(urls)) for group in self._groups(shard)]
        rows = torch.tensor([group.num_rows for group in self.groups])
        self.starts = rows.cumsum(0) - rows

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
        """The encoded images in some rows of a row group; empty ones where a row has none."""
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
        rows: int64 (N,), the images' places among the rows of all files; ascending.
        size: Side of the square they are brought to.
        max_bad_images: Unreadable images that are passed over; 0 passes over none.
        buffer_bytes: Bytes of encoded images that may be held at once.
    """

    shards: Shards
    rows: Tensor
    size: int
    max_bad_images: int
    buffer_bytes: int

    @cached_property
    def blocks(self) -> Tensor:
        """int64 (N,), the row group each image lies in."""
        return torch.searchsorted(self.shards.starts, self.rows, right=True) - 1

    @cached_property
    def image_bytes(self) -> Tensor:
        """float64 (N,), the mean number of bytes of the encoded images of its row group."""
        means = [group.num_bytes / max(1, group.num_rows) for group in self.shards.groups]
        return torch.tensor(means, dtype=torch.float64)[self.blocks]

    def fetch(self, index: Sequence[int]) -> list[bytes]:
        """The encoded images at some positions, which lie in one row group."""
        block = self.blocks[index[0]]
        rows = self.rows[torch.tensor(index)] - self.shards.starts[block]
        return self.shards.read(self.shards.groups[block], rows.tolist())

    def decode(self, index: int, content: bytes, box: Box | None = None) -> Tensor:
        """A fetched image as uint8 (3, size, size)."""
        block = self.blocks[index]
        group = self.shards.groups[block]
        row = int(self.rows[index] - self.shards.starts[block]) + group.start
        return decode_image(content, f"{self.shards.urls[group.shard]} row {row}", self.size, box)

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Image `index` as uint8 (3, size, size); its whole row group is fetched for it."""
        return self.decode(index, self.fetch([index])[0], box)

    def placeholder(self) -> Tensor:
        """A black image."""
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def select(self, index: Tensor) -> ShardSource:
        """The source of only these images."""
        return replace(self, rows=self.rows[index])


def read_shards(urls: Sequence[str], image: str, label: str) -> tuple[Shards, Tensor]:
    """Open parquet files and read their labels, and nothing of their images.

    The labels are one request a row group, so those of a pinned revision are kept.

    Args:
        urls: The files.
        image: The column of the images.
        label: The column of the labels.

    Returns:
        The files, and int64 (N,) with -1 where there is no label.
    """

    def read_end(url: str) -> Any:
        with _opened(url) as file:
            return file.metadata

    def read_labels(url: str, metadata: Any) -> np.ndarray:
        with _opened(url, metadata) as file:
            column = file.read(columns=[label]).column(0)
            return np.asarray(column.fill_null(-1).to_numpy(), dtype=np.int64)

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        metadata = list(pool.map(read_end, urls))
        labels = kept_labels(
            [f"{url}#{label}" for url in urls],
            lambda: torch.from_numpy(np.concatenate([*pool.map(read_labels, urls, metadata)])),
        )
    return Shards(urls, image, metadata), labels


@contextmanager
def _opened(url: str, metadata: Any = None) -> Iterator[Any]:
    """Open a parquet file so that no more of it is fetched than is asked for."""
    import fsspec
    import pyarrow.parquet as parquet

    try:
        files, path = fsspec.core.url_to_fs(url)
        with files.open(path, "rb", cache_type="none") as file:
            yield parquet.ParquetFile(file, metadata=metadata, pre_buffer=True)
    except Exception as error:  # pyarrow's, the hub's and the network's errors
        raise DataError(f"{url} cannot be read: {' '.join(str(error).split())}") from None
