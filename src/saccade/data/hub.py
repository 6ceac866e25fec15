"""Data sets of the Hugging Face hub (`hf:<name>`), streamed: they never lie whole on the disk.

Images are brought to `data.image_size` as they arrive and kept in memory as bytes, up to
`data.num_train` and `data.num_test` of them.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.images import DEFAULT_IMAGE_SIZE, square, to_rgb, to_tensor
from saccade.data.splits import TEST_FRACTION, TEST_SEED, Split, divide
from saccade.errors import ConfigError, DataError

__all__ = ["HUB_PREFIX", "load_hub"]

HUB_PREFIX = "hf:"
MAX_BYTES = 16 << 30
_SHUFFLE_BUFFER = 10_000


def load_hub(config: DataConfig) -> tuple[Split, Split, tuple[str, ...]]:
    """Training and test split and the names of the classes.

    `test` is the hub's `test`, else its `validation`, else a fixed fifth of `train`.

    Raises:
        DataError: The package is missing, the set cannot be had, or has no images with labels.
    """
    name = config.name.removeprefix(HUB_PREFIX)
    if not name:
        raise ConfigError("data.name='hf:': wants hf:<name>, such as hf:uoft-cs/cifar10")
    parts = _open(name)
    if "train" not in parts:
        raise DataError(f"{config.name}: no 'train' split, only {', '.join(parts) or 'none'}")
    image, label, names = _columns(config.name, parts["train"].features)
    train = _collect(parts["train"], image, label, config.num_train, config)
    for other in ("test", "validation", "valid"):
        if other in parts:
            return train, _collect(parts[other], image, label, config.num_test, config), names
    return *divide(train, TEST_FRACTION, TEST_SEED), names


def _open(name: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"data.name='hf:{name}' needs the datasets package: pip install datasets"
        ) from None
    try:
        return load_dataset(name, streaming=True)
    except Exception as error:  # the package raises its own, the hub's and the network's errors
        raise DataError(f"hf:{name} cannot be loaded: {' '.join(str(error).split())}") from None


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
    size = config.image_size or DEFAULT_IMAGE_SIZE
    images: list[Tensor] = []
    labels: list[int] = []
    bad: list[str] = []
    if limit is not None:
        part = part.shuffle(seed=config.split_seed, buffer_size=_SHUFFLE_BUFFER).take(limit)
    for number, row in enumerate(part):
        try:
            images.append(to_tensor(square(to_rgb(row[image]), size)))
            labels.append(int(row[label]))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            bad.append(f"{config.name}: image {number} cannot be read ({error})")
            if config.on_bad_image == "fail" or len(bad) > config.max_bad_images:
                raise DataError(bad[-1]) from None
        if len(images) * 3 * size * size > MAX_BYTES:
            raise DataError(
                f"{config.name}: more than {MAX_BYTES >> 30} GiB at image_size={size}: set "
                "data.num_train or a smaller data.image_size"
            )
    if not images or min(labels) < 0:
        raise DataError(f"{config.name}: a split without images, or with hidden labels")
    return Split(torch.tensor(labels, dtype=torch.int64), torch.stack(images))
