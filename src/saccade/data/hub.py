"""Data sets of the Hugging Face hub (`hf:<name>`, `hf:<name>@<revision>`), without a disk copy.

A set whose decoded images fit in `data.resident_gib` is read once and kept in memory as uint8. A
larger set is streamed: its row groups are fetched again in every epoch (`prefetch`). Streaming
needs parquet files, whose labels can be read without the images (`shards`). Most sets on the hub
are parquet.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit, skip_bad_image
from saccade.data.datasets import HUB_PREFIX
from saccade.data.decoding import read_some
from saccade.data.images import DEFAULT_IMAGE_SIZE, BadImageError, decode_image
from saccade.data.shards import ShardSource, read_shards
from saccade.data.splits import LeftOut, Split, divide, limited, select
from saccade.data.stratify import TEST_FRACTION, TEST_SEED, block_places, stratified_subset
from saccade.errors import ConfigError, DataError

__all__ = ["load_hub"]

_SHUFFLE_BUFFER = 10_000


def load_hub(config: DataConfig) -> tuple[Split, Split, tuple[str, ...]]:
    """Return the training split, the test split and the names of the classes.

    The test split is the first of the hub's `test`, `validation` and `valid` splits that has
    labels, else a fixed fifth of `train`.

    Raises:
        DataError: The package is missing, the set cannot be loaded, has no labeled images or fewer
            than two classes, a class has no images, or a label is out of range.
    """
    builder, parts = _open(config)
    if "train" not in parts:
        found = ", ".join(parts) or "no splits"
        raise DataError(f"{config.name}: the set must have a 'train' split, got {found}")
    image, label, names = _columns(config.name, parts["train"].features)
    files = builder.config.data_files or {}
    if files and all(str(url).endswith(".parquet") for urls in files.values() for url in urls):

        def read_labels(part: str) -> Split:
            return _sharded([str(url) for url in files[part]], image, label, config)

        splits = _train_and_test(parts, read_labels, names, config)
        return *_in_memory_if_small(*splits, config), names

    def read(part: str) -> Split:
        limit = config.num_train if part == "train" else config.num_test
        return _collect(parts[part], image, label, limit, config)

    return *_train_and_test(parts, read, names, config), names


def _open(config: DataConfig) -> tuple[Any, Any]:
    """Return the set's builder, which lists its files, and its splits by name."""
    name, revision = config.name.removeprefix(HUB_PREFIX), ""
    if not name:
        raise ConfigError("data.name must be hf:<name>, such as hf:uoft-cs/cifar10, got 'hf:'")
    if not Path(name).exists():
        if _is_path(name):
            raise DataError(f"data.name={config.name!r}: no such folder")
        name, _, revision = name.partition("@")
    try:
        from datasets import load_dataset_builder
    except ImportError:
        raise DataError(
            f"data.name={config.name!r} needs the datasets package: pip install datasets"
        ) from None
    try:
        builder = load_dataset_builder(name, revision=revision or None)
        return builder, builder.as_streaming_dataset()
    except ConnectionError as error:
        raise DataError(
            f"{config.name}: the hub cannot be reached ({_line(error)}); to work offline, give the "
            "path of a folder of parquet files, as in data.name=hf:./my-set"
        ) from None
    except Exception as error:  # errors of the package, the hub and the network
        raise DataError(f"{config.name} cannot be loaded: {_line(error)}") from None


def _is_path(name: str) -> bool:
    """True if a name cannot be a hub name, which is `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.partition("@")[0].count("/") > 1


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _train_and_test(
    parts: Collection[str],
    read: Callable[[str], Split],
    names: tuple[str, ...],
    config: DataConfig,
) -> tuple[Split, Split]:
    """Return the training and test split; unused parts are not read."""
    train = read("train")
    if not _shows_labels(train):
        raise DataError(f"{config.name}: the training split has no images or no labels")
    _check_classes(train, names, config)
    for part in ("test", "validation", "valid"):
        if part in parts and _shows_labels(test := read(part)):
            _check_labels(test, names, config)
            return train, test
    kept, test = divide(train, TEST_FRACTION, TEST_SEED, "test")
    if not len(test):
        raise DataError(
            f"{config.name}: {len(train)} images in {len(names)} classes are too few to hold out "
            "test images; use more images or a set with a 'test' split"
        )
    return kept, test


def _check_classes(train: Split, names: tuple[str, ...], config: DataConfig) -> None:
    """Raise an error if there are fewer than two classes or a class has no images."""
    if len(names) < 2:
        found = f"only the class {names[0]!r}" if names else "no class"
        raise DataError(f"{config.name} must have at least two classes, got {found}")
    _check_labels(train, names, config)
    if config.num_train is not None and train.stream is None:
        return  # a subset may have no image of a class
    empty = set(range(len(names))) - set(torch.unique(train.labels).tolist())
    if empty:
        raise DataError(f"{config.name}: class {names[min(empty)]!r} has no training images")


def _check_labels(split: Split, names: tuple[str, ...], config: DataConfig) -> None:
    highest = int(split.labels.max())
    if highest >= len(names):
        raise DataError(
            f"{config.name}: labels must be from 0 to {len(names) - 1} for {len(names)} classes, "
            f"got {highest}"
        )


def _shows_labels(split: Split) -> bool:
    return len(split) > 0 and int(split.labels.min()) >= 0


def _sharded(urls: Sequence[str], image: str, label: str, config: DataConfig) -> Split:
    """Return a split that reads its images from parquet files."""
    shards, labels = read_shards(urls, image, label)
    size = config.image_size or DEFAULT_IMAGE_SIZE
    rows = torch.arange(len(labels))
    buffer_bytes = int(config.buffer_mib * 2**20)
    source = ShardSource(shards, rows, size, bad_image_limit(config), buffer_bytes)
    return Split(labels, source=source, fingerprint=shards.fingerprint)


def _columns(name: str, features: Any) -> tuple[str, str, tuple[str, ...]]:
    """Return the names of the image column, the label column and the classes."""
    kinds = {column: type(feature).__name__ for column, feature in (features or {}).items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise DataError(f"{name}: the set must have an Image and a ClassLabel column, got {kinds}")
    label = next((column for column in labels if column in {"label", "fine_label"}), labels[0])
    return images[0], label, tuple(features[label].names)


def _collect(part: Any, image: str, label: str, limit: int | None, config: DataConfig) -> Split:
    """Read a split row by row into memory; works for files of any format.

    Reading stops at the first missing label. The result is then one image with the label -1.
    """
    from datasets import Image

    size = config.image_size or DEFAULT_IMAGE_SIZE
    images: list[Tensor] = []
    labels: list[int] = []
    faults: list[str] = []
    digest = hashlib.sha256()
    if limit is not None:
        part = part.shuffle(seed=config.split_seed, buffer_size=_SHUFFLE_BUFFER).take(limit)
    for number, row in enumerate(part.cast_column(image, Image(decode=False))):
        if row[label] is None or row[label] < 0:
            return Split(torch.tensor([-1]), torch.empty(1, 3, size, size, dtype=torch.uint8))
        name = row[image]["path"] or f"{config.name} row {number}"
        try:
            content = _content(row[image])
            digest.update(hashlib.sha256(content).digest())
            images.append(decode_image(content, name, size))
            labels.append(int(row[label]))
        except BadImageError as error:
            faults.append(str(error))
            skip_bad_image(faults, bad_image_limit(config))
        if len(images) * 3 * size * size > config.resident_gib * 2**30:
            raise DataError(
                f"{config.name}: the images take more than data.resident_gib="
                f"{config.resident_gib:g} at image_size={size}, and only parquet files can be "
                "streamed: set data.num_train, a smaller data.image_size or a larger "
                "data.resident_gib"
            )
    stored = torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
    return Split(
        torch.tensor(labels, dtype=torch.int64),
        stored,
        fingerprint=digest.hexdigest(),
        left_out=tuple(map(LeftOut, faults)),
    )


def _content(cell: dict[str, Any]) -> bytes:
    """Return an encoded image, stored in the row or in a separate file."""
    if cell["bytes"] is not None or cell["path"] is None:
        return cell["bytes"] or b""
    import fsspec

    with fsspec.open(cell["path"], "rb") as file:
        return bytes(file.read())


def _in_memory_if_small(train: Split, test: Split, config: DataConfig) -> tuple[Split, Split]:
    """Return both splits, with their images in memory if they fit in `data.resident_gib`.

    In a set that fits, `data.num_train` and `data.num_test` take stratified subsets. In a larger
    set they take whole row groups, so that no others are fetched. The subsets are kept in memory if
    they fit.

    Raises:
        ConfigError: A streamed set has row groups that are too large for the buffer.
        DataError: An image of a set kept in memory cannot be read and may not be skipped.
    """
    take = _stratified if _fits(train, test, config) else limited
    train = take(train, config.num_train, config.split_seed)
    test = take(test, config.num_test, config.split_seed)
    if _fits(train, test, config):
        return _read(train, config), _read(test, config)
    _check_buffer((train, test), config)
    return train, test


def _fits(train: Split, test: Split, config: DataConfig) -> bool:
    size = config.image_size or DEFAULT_IMAGE_SIZE
    return (len(train) + len(test)) * 3 * size * size <= config.resident_gib * 2**30


def _stratified(split: Split, count: int | None, seed: int) -> Split:
    return split if count is None else select(split, stratified_subset(split.labels, count, seed))


def _check_buffer(splits: Sequence[Split], config: DataConfig) -> None:
    """Raise an error if the buffer cannot hold two row groups."""
    sources = [split.source for split in splits if isinstance(split.source, ShardSource)]
    largest = max(group.num_bytes for source in sources for group in source.shards.groups)
    if 2 * largest > config.buffer_mib * 2**20:
        wanted = math.ceil(2 * largest / 2**20 * 1000) / 1000
        raise ConfigError(
            f"data.buffer_mib must be at least {wanted:g} to hold two row groups of {config.name}, "
            f"whose images take {largest} bytes each, got {config.buffer_mib:g}"
        )


def _read(split: Split, config: DataConfig) -> Split:
    """Read a split into memory, without unreadable images if they may be skipped."""
    assert split.stream is not None
    images = torch.empty(len(split), *split.image_shape, dtype=torch.uint8)
    is_good = torch.zeros(len(split), dtype=torch.bool)

    def fill(block: range) -> list[str]:
        """Read the images of a block and return the messages of unreadable ones."""
        results = dict(zip(block, read_some(split, block), strict=True))
        for place, result in results.items():
            if isinstance(result, Tensor):
                images[place], is_good[place] = result, True
        return [str(result) for result in results.values() if not isinstance(result, Tensor)]

    faults: list[str] = []
    with ThreadPoolExecutor(max(1, config.workers)) as pool:
        for found in pool.map(fill, block_places(split.stream.blocks)):
            for fault in found:
                faults.append(fault)
                skip_bad_image(faults, bad_image_limit(config))
    if not faults:
        return Split(split.labels, images, fingerprint=split.fingerprint)
    return Split(
        split.labels[is_good],
        images[is_good],
        fingerprint=split.fingerprint,
        left_out=tuple(map(LeftOut, faults)),
    )
