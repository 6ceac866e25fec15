"""What a data set is once loaded: three splits of images and labels, and the facts about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.blocks import block_range
from saccade.data.randomness import Purpose, make_key, permutation
from saccade.errors import DataError

__all__ = [
    "TEST_FRACTION",
    "TEST_SEED",
    "Box",
    "DatasetInfo",
    "ImageSource",
    "Split",
    "Splits",
    "StreamSource",
    "channel_statistics",
    "divide",
    "hold_out_validation",
    "limit_and_fold",
    "limited",
    "select",
    "stratified_fold",
    "stratified_split",
    "stratified_subset",
]

# A set without an official test set gets this one; the two numbers must not change.
TEST_FRACTION = 0.2
TEST_SEED = 0

Box = tuple[float, float, float, float]
"""Top, left, height and width of a crop as fractions of the image."""


class ImageSource(Protocol):
    """Images that do not fit in memory; worker processes ask for them one at a time."""

    @property
    def max_bad_images(self) -> int:
        """Unreadable images that are passed over before it is an error."""

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Image `index` as uint8 (C, H, W); a `DataError` names the file if it is unreadable."""

    def placeholder(self) -> Tensor:
        """An image of the right shape, for a place where nothing can be read."""

    def select(self, index: Tensor) -> ImageSource:
        """The source of only these images."""


@runtime_checkable
class StreamSource(ImageSource, Protocol):
    """Images that lie far away in blocks, each of which is fetched whole, and decoded here."""

    @property
    def blocks(self) -> Tensor:
        """int64 (N,), the block each image lies in; ascending."""

    @property
    def image_bytes(self) -> Tensor:
        """float64 (N,), the mean number of bytes of the encoded images of its block."""

    @property
    def buffer_bytes(self) -> int:
        """Bytes of encoded images that may be held at once."""

    def fetch(self, index: Sequence[int]) -> list[bytes]:
        """The encoded images at some positions, which lie in one block."""

    def decode(self, index: int, content: bytes, box: Box | None = None) -> Tensor:
        """What `read` gives for an image that has been fetched."""


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set; `mean` and `std` are the training split's, for pixels in 0..1."""

    name: str
    num_classes: int
    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Split:
    """Labels, and images either in memory or behind a source.

    Attributes:
        labels: int64 (N,).
        images: uint8 (N, C, H, W), or None where `source` reads them.
        source: Reads one image at a time, or None where `images` holds them.
        origin: int64 (N,), positions in the set before it was split, where that is of use.
    """

    labels: Tensor
    images: Tensor | None = None
    source: ImageSource | None = None
    origin: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.images is None) == (self.source is None):
            raise ValueError("a split has either images or a source")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width of every image."""
        if self.images is not None:
            return tuple(self.images.shape[1:])
        assert self.source is not None
        return tuple(self.source.placeholder().shape)

    @property
    def stream(self) -> StreamSource | None:
        """The source, where it is one that is streamed."""
        return self.source if isinstance(self.source, StreamSource) else None


@dataclass(frozen=True)
class Splits:
    """Training, validation and test split of one data set; validation may be empty."""

    train: Split
    val: Split
    test: Split
    info: DatasetInfo


def select(split: Split, index: Tensor) -> Split:
    """The part of a split at these positions, in this order."""
    return Split(
        split.labels[index],
        None if split.images is None else split.images[index],
        None if split.source is None else split.source.select(index),
        None if split.origin is None else split.origin[index],
    )


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of every class.

    Args:
        labels: int64 (N,).
        fraction: Part to hold out, in [0, 1).
        seed: The same seed holds out the same positions.

    Returns:
        Positions kept and positions held out, each ascending. `round(fraction * N)` are held out,
        spread over the classes by largest remainder; no class loses its last sample.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"fraction={fraction}: wants 0 <= fraction < 1")
    out = _drawn(labels, fraction, seed, spared=1)
    return torch.nonzero(~out).flatten(), torch.nonzero(out).flatten()


def _drawn(labels: Tensor, fraction: float, seed: int, *, spared: int) -> Tensor:
    """A mask of as many samples, all classes in proportion, of which some are spared in each."""
    order = permutation(make_key(seed, 0, Purpose.SPLIT), len(labels)).numpy()
    shuffled = labels.numpy()[order]
    classes, sizes = np.unique(shuffled, return_counts=True)
    held = [
        order[np.flatnonzero(shuffled == label)[:quota]]
        for label, quota in zip(
            classes, _quotas(sizes, fraction).clip(max=sizes - spared), strict=True
        )
    ]
    out = np.zeros(len(labels), dtype=bool)
    out[np.concatenate([*held, np.empty(0, dtype=np.int64)]).astype(np.int64)] = True
    return torch.from_numpy(out)


def stratified_subset(labels: Tensor, count: int, seed: int) -> Tensor:
    """Positions of a subset of `count` samples with all classes in proportion; all if fewer."""
    if count >= len(labels):
        return torch.arange(len(labels))
    return torch.nonzero(_drawn(labels, count / len(labels), seed, spared=0)).flatten()


def divide(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Cut a split in two: what is kept, and a fraction that is held out.

    The fraction is one of every class, or of the blocks where the split is streamed.
    """
    if split.stream is not None:
        kept, held = block_range(split.stream.blocks, 0, round(fraction * len(split)), seed)
    else:
        kept, held = stratified_split(split.labels, fraction, seed)
    return select(split, kept), select(split, held)


def hold_out_validation(train: Split, config: DataConfig) -> tuple[Split, Split]:
    """Cut `data.val_fraction` off a training set, which has to come to one image if it is not 0."""
    kept, val = divide(train, config.val_fraction, config.split_seed)
    if config.val_fraction and not len(val):
        raise DataError(
            f"data.val_fraction={config.val_fraction}: with {len(train)} training images in "
            f"{len(torch.unique(train.labels))} classes none is left to validate on; take more "
            "images, or data.val_fraction=0 to do without"
        )
    return kept, val


def stratified_fold(labels: Tensor, folds: int, fold: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions outside and inside one of `folds` parts that hold every class alike.

    The parts of one seed do not overlap and cover everything. Their sizes, and those of each class
    in them, differ by at most one.
    """
    if folds > len(labels):
        raise DataError(f"folds={folds} is more than the {len(labels)} training images")
    order = permutation(make_key(seed, 0, Purpose.SPLIT), len(labels))
    dealt = order[torch.argsort(labels[order], stable=True)]  # class by class
    inside = torch.zeros(len(labels), dtype=torch.bool)
    inside[dealt[fold::folds]] = True
    return torch.nonzero(~inside).flatten(), torch.nonzero(inside).flatten()


def limit_and_fold(train: Split, test: Split, config: DataConfig) -> tuple[Split, Split]:
    """The subsets asked for; with a fold, that part of the training set in the test set's place."""
    train = limited(train, config.num_train, config.split_seed)
    if config.folds is None or config.fold is None:
        return train, limited(test, config.num_test, config.split_seed)
    if train.stream is not None:
        start, stop = (len(train) * end // config.folds for end in (config.fold, config.fold + 1))
        kept, held = block_range(train.stream.blocks, start, stop, config.split_seed)
    else:
        kept, held = stratified_fold(train.labels, config.folds, config.fold, config.split_seed)
    return select(train, kept), select(train, held)


def limited(split: Split, count: int | None, seed: int) -> Split:
    """At most `count` samples, all classes in proportion or whole blocks; all of them for None."""
    if count is None or count >= len(split):
        return split
    if split.stream is not None:
        return select(split, block_range(split.stream.blocks, 0, count, seed)[1])
    return select(split, stratified_subset(split.labels, count, seed))


def _quotas(sizes: np.ndarray, fraction: float) -> np.ndarray:
    """How many of each class to hold out, by largest remainder."""
    exact = sizes * fraction
    quotas = np.floor(exact).astype(np.int64)
    missing = round(float(exact.sum())) - int(quotas.sum())
    by_remainder = np.argsort(quotas - exact, kind="stable")
    quotas[by_remainder[:missing]] += 1
    return quotas


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel of uint8 (N, C, H, W), for pixels in 0..1.

    The sums are integers, so the result is exact whatever the order of the images.
    """
    channels = images.shape[1]
    total = torch.zeros(channels, dtype=torch.int64)
    squares = torch.zeros(channels, dtype=torch.int64)
    for chunk in images.chunk(-(-len(images) // 1024)):
        levels = chunk.to(torch.int32).transpose(0, 1).reshape(channels, -1)
        total += levels.sum(1)
        squares += (levels * levels).sum(1)
    count = images.numel() // channels
    mean = total.double() / count
    std = (squares.double() / count - mean**2).clamp(min=0).sqrt()
    # A constant channel is only centred: one grey level stands in for its spread.
    std = torch.where(std > 0, std, 1.0)
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
