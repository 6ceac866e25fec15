"""A loaded data set: its splits, where their images are, and facts about it.

`divide`, `hold_out_validation` and `limit_and_fold` split it further; `stratify.py` chooses the
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.stratify import (
    block_range,
    fold_by_name,
    hold_out_by_name,
    name_draws,
    stratified_fold,
    stratified_split,
    stratified_subset,
    subset_by_name,
)
from saccade.errors import DataError
from saccade.nouns import noun_of

__all__ = [
    "Box",
    "DatasetInfo",
    "ImageSource",
    "LeftOut",
    "NamedFiles",
    "NamedSource",
    "Split",
    "Splits",
    "StreamSource",
    "divide",
    "hold_out_validation",
    "limit_and_fold",
    "limited",
    "select",
]

Box = tuple[float, float, float, float]
"""Top, left, height and width of a crop, as fractions of the image."""


class ImageSource(Protocol):
    """Images that are not in memory; worker processes read them one at a time."""

    @property
    def max_bad_images(self) -> int:
        """Number of unreadable images that may be skipped."""

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Return image `index` as uint8 (C, H, W); a `DataError` names an unreadable file."""

    def placeholder(self) -> Tensor:
        """Return an image of the right shape that replaces an unreadable one."""

    def select(self, index: Tensor) -> ImageSource:
        """Return the source of a subset of the images."""


class Named(Protocol):
    """Separate files."""

    @property
    def paths(self) -> Sequence[str]:
        """Path of each file."""

    @property
    def names(self) -> Sequence[str]:
        """Paths relative to the data set's folder, with `/` as the separator."""

    @property
    def is_split_by_name(self) -> bool:
        """False to split by position, for old runs that did not record their split."""


@runtime_checkable
class NamedSource(ImageSource, Named, Protocol):
    """Images in separate files."""


@dataclass(frozen=True)
class NamedFiles:
    """The files of a split that is in memory; see `Named`."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    is_split_by_name: bool = True

    def select(self, index: Tensor) -> NamedFiles:
        """The files at these positions."""
        places = index.tolist()
        paths, names = (tuple(of[i] for i in places) for of in (self.paths, self.names))
        return replace(self, paths=paths, names=names)


@dataclass(frozen=True)
class LeftOut:
    """An item that could not be read and is not in a split, although it belongs there.

    Attributes:
        message: Why it could not be read.
        path: Its file; empty if it has none of its own.
        name: Path relative to the data set's folder; empty if it has no file of its own.
    """

    message: str
    path: str = ""
    name: str = ""


@runtime_checkable
class StreamSource(ImageSource, Protocol):
    """Encoded images in blocks; a block is fetched whole and its images are decoded locally."""

    @property
    def blocks(self) -> Tensor:
        """int64 (N,), the block of each image; ascending."""

    @property
    def image_bytes(self) -> Tensor:
        """float64 (N,), for each image the mean encoded size in its block, in bytes."""

    @property
    def buffer_bytes(self) -> int:
        """Maximum bytes of encoded images in memory."""

    def fetch(self, index: Sequence[int]) -> list[bytes]:
        """Return the encoded images at positions that are all in one block."""

    def decode(self, index: int, content: bytes, box: Box | None = None) -> Tensor:
        """Decode a fetched image to what `read` returns."""


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set.

    Attributes:
        name: Name of the data set.
        num_classes: Number of classes.
        class_names: Their names, in the order of the labels.
        image_size: Height and width; for sequences, 1 and the maximum length.
        channels: Channels of an image.
        mean: Mean of each channel of the training images, for pixels in 0..1.
        std: Standard deviation of each channel.
        kind: `images`, or what the symbols of a sequence are: gray levels of the pixels of an image
            (`pixels`), the `bytes` of a text, or `symbols` with names.
        num_symbols: Size of the vocabulary of sequences; 0 for images.
        pad_symbol: The symbol that fills shorter sequences; None if all have the same length.
        symbols: Names of the symbols, if they have names.
    """

    name: str
    num_classes: int
    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    kind: Literal["images", "pixels", "bytes", "symbols"] = "images"
    num_symbols: int = 0
    pad_symbol: int | None = None
    symbols: tuple[str, ...] = ()

    @property
    def is_sequence(self) -> bool:
        """True for sequences of symbols, False for images."""
        return self.kind != "images"

    @property
    def noun(self) -> str:
        """What an input is, in the singular."""
        return noun_of(self.kind)

    @property
    def max_length(self) -> int:
        """Maximum length of a sequence."""
        return self.image_size[1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input of a model: (C, H, W), or (N,) for sequences."""
        return (self.max_length,) if self.is_sequence else (self.channels, *self.image_size)

    @property
    def input_words(self) -> str:
        """The inputs in words, for messages."""
        if self.is_sequence:
            return f"sequences of up to {self.max_length} of {self.num_symbols} symbols"
        return f"images of {' x '.join(map(str, (self.channels, *self.image_size)))}"


@dataclass(frozen=True)
class Split:
    """Labels, and images that are in memory or read by a source.

    Attributes:
        labels: int64 (N,).
        images: uint8 (N, C, H, W), or None if `source` reads them. For sequences, integers (N, L),
            filled with the padding symbol.
        source: Reads one image at a time; None if `images` is given.
        origin: int64 (N,), positions in the set before it was split; only set for shapes.
        fingerprint: Identifies images that are drawn or whose pixels depend on the decoder's
            version; else empty.
        lengths: int64 (N,), lengths of padded sequences; None for others.
        named: The files that `images` were read from; None without files of the user.
        left_out: Items that could not be read into `images`; they are not among the N.
    """

    labels: Tensor
    images: Tensor | None = None
    source: ImageSource | None = None
    origin: Tensor | None = None
    fingerprint: str = ""
    lengths: Tensor | None = None
    named: NamedFiles | None = None
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        if (self.images is None) == (self.source is None):
            raise ValueError("a split must have either images or a source")

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
        """The source if it is streamed, else None."""
        return self.source if isinstance(self.source, StreamSource) else None

    @property
    def files(self) -> Named | None:
        """Its separate files; None if it has none."""
        return self.source if isinstance(self.source, NamedSource) else self.named

    def name_draws(self, purpose: str, seed: int) -> NDArray[np.float64] | None:
        """Return a number in [0, 1) for each image by its name; None if split by position."""
        files = self.files
        if files is None or not files.is_split_by_name:
            return None
        return name_draws(files.names, purpose, seed)


@dataclass(frozen=True)
class Splits:
    """Training, validation and test split of one data set; validation may be empty.

    Attributes:
        unused: Names of a folder's images that are in no split, for example with `data.num_train`.
    """

    train: Split
    val: Split
    test: Split
    info: DatasetInfo
    unused: tuple[str, ...] = ()


def select(split: Split, index: Tensor) -> Split:
    """Return the images of a split at these positions, in this order.

    What was left out of the split is left out of the selection too.
    """
    return Split(
        split.labels[index],
        None if split.images is None else split.images[index],
        None if split.source is None else split.source.select(index),
        None if split.origin is None else split.origin[index],
        split.fingerprint,
        None if split.lengths is None else split.lengths[index],
        None if split.named is None else split.named.select(index),
        split.left_out,
    )


def divide(split: Split, fraction: float, seed: int, purpose: str) -> tuple[Split, Split]:
    """Hold out a fraction of a split; return the rest and the held-out part.

    The fraction is taken from every class, or from the blocks of a streamed split. Files are held
    out by a hash of their names, which differs between purposes.
    """
    if split.stream is not None:
        kept, held = block_range(split.stream.blocks, 0, round(fraction * len(split)), seed)
    elif (draws := split.name_draws(purpose, seed)) is not None:
        kept, held = hold_out_by_name(split.labels, draws, fraction)
    else:
        kept, held = stratified_split(split.labels, fraction, seed)
    return select(split, kept), _held(split, held)


def _held(split: Split, index: Tensor) -> Split:
    """A part that is held out; what could not be read counts as left out of the rest."""
    return replace(select(split, index), left_out=())


def hold_out_validation(train: Split, config: DataConfig) -> tuple[Split, Split]:
    """Hold out `data.val_fraction` of a training set; the part may be empty only if it is 0."""
    kept, val = divide(train, config.val_fraction, config.split_seed, "val")
    if config.val_fraction and not len(val):
        raise DataError(
            f"data.val_fraction={config.val_fraction}: {len(train)} training images in "
            f"{len(torch.unique(train.labels))} classes are too few to hold out validation images; "
            "use more images, or data.val_fraction=0 for no validation"
        )
    return kept, val


def limit_and_fold(train: Split, test: Split, config: DataConfig) -> tuple[Split, Split]:
    """Apply `num_train` and `num_test`; a fold of the training set replaces the test set."""
    train = limited(train, config.num_train, config.split_seed)
    if config.folds is None or config.fold is None:
        return train, limited(test, config.num_test, config.split_seed)
    if config.folds > len(train):
        raise DataError(
            f"data.folds must be at most {len(train)}, the number of training images, got "
            f"{config.folds}"
        )
    if train.stream is not None:
        start, stop = (len(train) * end // config.folds for end in (config.fold, config.fold + 1))
        kept, held = block_range(train.stream.blocks, start, stop, config.split_seed)
    elif (draws := train.name_draws("fold", config.split_seed)) is not None:
        kept, held = fold_by_name(train.labels, draws, config.folds, config.fold)
    else:
        kept, held = stratified_fold(train.labels, config.folds, config.fold, config.split_seed)
    return select(train, kept), _held(train, held)


def limited(split: Split, count: int | None, seed: int) -> Split:
    """Return at most `count` samples, stratified or in whole blocks; all of them for None."""
    if count is None or count >= len(split):
        return split
    if split.stream is not None:
        return select(split, block_range(split.stream.blocks, 0, count, seed)[1])
    if (draws := split.name_draws("limit", seed)) is not None:
        return select(split, subset_by_name(split.labels, draws, count))
    return select(split, stratified_subset(split.labels, count, seed))
