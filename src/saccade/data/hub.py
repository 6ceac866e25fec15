"""Data sets of the Hugging Face hub (`hf:<name>`, `hf:<name>@<revision>`), not stored on the disk.

A set whose decoded images fit in `data.resident_gib` is read once and kept in memory as bytes. A
larger one is streamed: every epoch fetches its row groups anew. Only sets of parquet files can be,
since these tell the labels without the images (`shards`); that is what the hub converts sets to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit, pass_over
from saccade.data.images import DEFAULT_IMAGE_SIZE, BadImageError, decode_image
from saccade.data.residency import keep_if_small
from saccade.data.shards import ShardSource, read_shards
from saccade.data.splits import TEST_FRACTION, TEST_SEED, Split, divide
from saccade.errors import ConfigError, DataError

__all__ = ["HUB_PREFIX", "load_hub"]

HUB_PREFIX = "hf:"
_SHUFFLE_BUFFER = 10_000
_TEST_NAMES = ("test", "validation", "valid")


def load_hub(config: DataConfig) -> tuple[Split, Split, tuple[str, ...]]:
    """Training and test split and the names of the classes.

    `test` is the hub's `test`, else its `validation`, whichever shows its labels, else a fixed
    fifth of `train`.

    Raises:
        DataError: The package is missing, the set cannot be had, has no images with labels, fewer
            than two classes, a class without images, or labels of no class.
    """
    builder, parts = _open(config)
    if "train" not in parts:
        raise DataError(f"{config.name}: no 'train' split, only {', '.join(parts) or 'none'}")
    image, label, names = _columns(config.name, parts["train"].features)
    files = builder.config.data_files or {}
    if files and all(str(url).endswith(".parquet") for urls in files.values() for url in urls):
        loaded = {
            part: _sharded([str(url) for url in files[part]], image, label, config)
            for part in ("train", *_TEST_NAMES)
            if part in parts
        }
        return *keep_if_small(*_train_and_test(loaded, names, config), config), names
    loaded = {"train": _collect(parts["train"], image, label, config.num_train, config)}
    for part in _TEST_NAMES:
        if part in parts:
            loaded[part] = _collect(parts[part], image, label, config.num_test, config)
    return *_train_and_test(loaded, names, config), names


def _open(config: DataConfig) -> tuple[Any, Any]:
    """The set's builder, which knows its files, and its parts by name."""
    name, revision = config.name.removeprefix(HUB_PREFIX), ""
    if not name:
        raise ConfigError("data.name='hf:': wants hf:<name>, such as hf:uoft-cs/cifar10")
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
            f"{config.name}: the hub cannot be reached ({_line(error)}); without a network give "
            "the path of a folder of parquet files, as in data.name=hf:./my-set"
        ) from None
    except Exception as error:  # the package raises its own, the hub's and the network's errors
        raise DataError(f"{config.name} cannot be loaded: {_line(error)}") from None


def _is_path(name: str) -> bool:
    """Whether a name can only be meant as a path: the hub's are `name` or `owner/name`."""
    return name.startswith((".", "/", "~")) or name.partition("@")[0].count("/") > 1


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _train_and_test(
    loaded: dict[str, Split], names: tuple[str, ...], config: DataConfig
) -> tuple[Split, Split]:
    shown = {part: split for part, split in loaded.items() if _shows_labels(split)}
    if "train" not in shown:
        raise DataError(f"{config.name}: its training split has no images, or hides their labels")
    train = shown["train"]
    _check_classes(train, names, config)
    for part in _TEST_NAMES:
        if part in shown:
            _check_labels(shown[part], names, config)
            return train, shown[part]
    kept, test = divide(train, TEST_FRACTION, TEST_SEED)
    if not len(test):
        raise DataError(
            f"{config.name}: with {len(train)} images in {len(names)} classes none is left to "
            "test on; take more images, or a set with a 'test' split"
        )
    return kept, test


def _check_classes(train: Split, names: tuple[str, ...], config: DataConfig) -> None:
    """Refuse a training set of fewer than two classes, or with an empty one."""
    if len(names) < 2:
        what = f"only the class {names[0]!r}" if names else "no class"
        raise DataError(f"{config.name}: {what}; wants at least two classes")
    _check_labels(train, names, config)
    if config.num_train is not None and train.stream is None:
        return  # a part of the set, which may have no image of a class
    empty = set(range(len(names))) - set(torch.unique(train.labels).tolist())
    if empty:
        raise DataError(f"{config.name}: class {names[min(empty)]!r} has no training images")


def _check_labels(split: Split, names: tuple[str, ...], config: DataConfig) -> None:
    highest = int(split.labels.max())
    if highest >= len(names):
        raise DataError(
            f"{config.name}: an image has the label {highest}; accepted: 0 to {len(names) - 1}, "
            f"for {len(names)} classes"
        )


def _shows_labels(split: Split) -> bool:
    return len(split) > 0 and int(split.labels.min()) >= 0


def _sharded(urls: Sequence[str], image: str, label: str, config: DataConfig) -> Split:
    """A split whose images stay in their parquet files."""
    shards, labels = read_shards(urls, image, label)
    size = config.image_size or DEFAULT_IMAGE_SIZE
    rows = torch.arange(len(labels))
    buffer_bytes = int(config.buffer_mib * 2**20)
    return Split(
        labels, source=ShardSource(shards, rows, size, bad_image_limit(config), buffer_bytes)
    )


def _columns(name: str, features: Any) -> tuple[str, str, tuple[str, ...]]:
    """Names of the image and the label column, and of the classes."""
    kinds = {column: type(feature).__name__ for column, feature in (features or {}).items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise DataError(f"{name}: wants an Image and a ClassLabel column, has {kinds}")
    label = next((column for column in labels if column in {"label", "fine_label"}), labels[0])
    return images[0], label, tuple(features[label].names)


def _collect(part: Any, image: str, label: str, limit: int | None, config: DataConfig) -> Split:
    """A split in memory, row by row, whatever its files are; the only way if not parquet."""
    from datasets import Image

    size = config.image_size or DEFAULT_IMAGE_SIZE
    images: list[Tensor] = []
    labels: list[int] = []
    faults: list[str] = []
    if limit is not None:
        part = part.shuffle(seed=config.split_seed, buffer_size=_SHUFFLE_BUFFER).take(limit)
    for number, row in enumerate(part.cast_column(image, Image(decode=False))):
        name = row[image]["path"] or f"{config.name} row {number}"
        try:
            images.append(decode_image(_content(row[image]), name, size))
            labels.append(int(row[label]))
        except BadImageError as error:
            faults.append(str(error))
            pass_over(faults, bad_image_limit(config))
        if len(images) * 3 * size * size > config.resident_gib * 2**30:
            raise DataError(
                f"{config.name}: more than data.resident_gib={config.resident_gib:g} at image_size="
                f"{size}, and only parquet files can be streamed: set data.num_train, a smaller "
                "data.image_size, or more memory"
            )
    stored = torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
    return Split(torch.tensor(labels, dtype=torch.int64), stored)


def _content(cell: dict[str, Any]) -> bytes:
    """An encoded image, which lies in the row or in a file of its own."""
    if cell["bytes"] is not None or cell["path"] is None:
        return cell["bytes"] or b""
    import fsspec

    with fsspec.open(cell["path"], "rb") as file:
        return bytes(file.read())
