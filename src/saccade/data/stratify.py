"""Choose the images that a split holds out: by their positions, their names or their blocks.

**By position**, from memory: a stratified sample in a random order.

**By name**, from files: adding or removing images does not move the others to another split. Every
name is hashed to a number in [0, 1), and images below the fraction are held out. By chance this
could hold out far too many or too few images of a small class. So the number held out of each
class is limited to within half of its exact share, or within one image. Where this limit applies,
an image can move when its class grows. It rarely applies to classes of a hundred images or more.
Subsets and folds have exact sizes: they take the images of a class in the order of these numbers.

**By block**, from a streamed set, such as the row groups of parquet files: a block is always
fetched whole, so images of one block should be used together.

Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from saccade.data.randomness import Purpose, make_key, numpy_permutation
from saccade.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "TEST_FRACTION",
    "TEST_SEED",
    "block_places",
    "block_range",
    "fold_by_name",
    "held_out",
    "hold_out_by_name",
    "name_draws",
    "shuffled_blocks",
    "stratified_fold",
    "stratified_sample",
    "stratified_split",
    "stratified_subset",
    "subset_by_name",
]

# The test split of sets without an official one; these two numbers must not change.
TEST_FRACTION = 0.2
TEST_SEED = 0

Draws = NDArray[np.float64]
Mask = NDArray[np.bool_]


# By position


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of every class.

    Args:
        labels: int64 (N,).
        fraction: Fraction to hold out, in [0, 1).
        seed: The same seed holds out the same positions.

    Returns:
        Positions kept and positions held out, each ascending. `round(fraction * N)` are held out,
        assigned to classes by largest remainder. Every class keeps at least one sample.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"fraction must be in [0, 1), got {fraction}")
    return _both(stratified_sample(labels.numpy(), fraction, seed, spared=1))


def stratified_subset(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return positions of a stratified subset of `count` samples, or all if there are fewer."""
    if count >= len(labels):
        return _positions(np.ones(len(labels), dtype=bool))
    return _positions(stratified_sample(labels.numpy(), count / len(labels), seed, spared=0))


def stratified_sample(
    labels: NDArray[np.int64], fraction: float, seed: int, *, spared: int
) -> Mask:
    """Return the mask of a sample that leaves at least `spared` images of each class."""
    order = numpy_permutation(make_key(seed, 0, Purpose.SPLIT), len(labels))
    shuffled = labels[order]
    classes, sizes = np.unique(shuffled, return_counts=True)
    taken = np.zeros(len(labels), dtype=bool)
    for label, quota in zip(
        classes, _quotas(sizes, fraction).clip(max=sizes - spared), strict=True
    ):
        taken[order[np.flatnonzero(shuffled == label)[:quota]]] = True
    return taken


def stratified_fold(labels: Tensor, folds: int, fold: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return positions outside and inside one fold of a stratified partition into `folds` parts.

    The folds of one seed do not overlap and cover all samples. Their sizes differ by at most one
    sample, within each class and in total.
    """
    order = numpy_permutation(make_key(seed, 0, Purpose.SPLIT), len(labels))
    dealt = order[np.argsort(labels.numpy()[order], kind="stable")]  # class by class
    inside = np.zeros(len(labels), dtype=bool)
    inside[dealt[fold::folds]] = True
    return _both(inside)


# By name


def name_draws(names: Sequence[str], purpose: str, seed: int) -> Draws:
    """Return a number in [0, 1) for every name; they are independent for each purpose and seed."""
    key = hashlib.sha256(f"{purpose} {seed}".encode()).digest()
    words = b"".join(_digest(name, key) for name in names)
    return (np.frombuffer(words, dtype="<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _digest(name: str, key: bytes) -> bytes:
    """Hash a name to eight bytes, the same for composed and decomposed Unicode letters."""
    text = unicodedata.normalize("NFC", name).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8, key=key).digest()


def hold_out_by_name(labels: Tensor, draws: Draws, fraction: float) -> tuple[Tensor, Tensor]:
    """Return positions kept and positions held out, each ascending; see `held_out`."""
    return _both(held_out(labels.numpy(), draws, fraction))


def held_out(labels: NDArray[np.int64], draws: Draws, fraction: float) -> Mask:
    """Return the mask of about a fraction of every class, by the numbers of `name_draws`.

    Every class keeps at least one image. At least one image is held out of a class whose share
    rounds to one or more.
    """
    out = np.zeros(len(labels), dtype=bool)
    for members in _classes(labels, draws):
        out[members[: _held_count(draws[members], fraction)]] = True
    wanted = round(fraction * len(labels))
    if wanted and not out.any():  # every class is too small to hold out an image
        free = np.concatenate([members[:-1] for members in _classes(labels, draws)])
        out[free[np.argsort(draws[free], kind="stable")][:wanted]] = True
    return out


def _held_count(draws: Draws, fraction: float) -> int:
    """Return how many images of a class to hold out; `draws` are its numbers, ascending."""
    size = len(draws)
    exact = fraction * size
    tolerance = max(1.0, exact / 2)
    least = max(1 if round(exact) else 0, int(np.ceil(exact - tolerance)))
    most = int(np.floor(exact + tolerance)) if fraction else 0
    below = int(np.searchsorted(draws, fraction))
    return min(max(below, least), most, size - 1)


def subset_by_name(labels: Tensor, draws: Draws, count: int) -> Tensor:
    """Return positions of a stratified subset of `count` images, or all if there are fewer."""
    taken = np.full(len(labels), count >= len(labels))
    if not taken.all():
        classes = list(_classes(labels.numpy(), draws))
        sizes = np.array([len(members) for members in classes])
        for members, quota in zip(classes, _quotas(sizes, count / len(labels)), strict=True):
            taken[members[:quota]] = True
    return _positions(taken)


def fold_by_name(labels: Tensor, draws: Draws, folds: int, fold: int) -> tuple[Tensor, Tensor]:
    """Return positions outside and inside one fold, as `stratified_fold` does."""
    inside = np.zeros(len(labels), dtype=bool)
    before = 0  # images in previous classes; decides which folds get one more image
    for members in _classes(labels.numpy(), draws):
        parts = np.arange(before, before + len(members)) % folds
        sizes = np.bincount(parts, minlength=folds)
        start = int(sizes[:fold].sum())
        inside[members[start : start + sizes[fold]]] = True
        before += len(members)
    return _both(inside)


def _classes(labels: NDArray[np.int64], draws: Draws) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of each class, ordered by their numbers."""
    order = np.argsort(draws, kind="stable")
    found = labels[order]
    for label in np.unique(found):
        yield order[found == label]


def _quotas(sizes: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return the number of each class in a fraction of all, by the largest remainder method."""
    exact = sizes * fraction
    found: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = round(float(exact.sum())) - int(found.sum())
    by_remainder = np.argsort(found - exact, kind="stable")
    found[by_remainder[:missing]] += 1
    return found


# By block


def block_places(blocks: Tensor) -> list[range]:
    """Return the range of positions of each block; the positions of a block are consecutive."""
    values = blocks.numpy()
    starts = np.flatnonzero(np.diff(values, prepend=-1))  # blocks are numbered from 0
    return [range(*ends) for ends in pairwise([*starts.tolist(), len(values)])]


def shuffled_blocks(blocks: Tensor, key: int) -> Tensor:
    """Return positions with the blocks shuffled and the order within each block unchanged."""
    import torch

    return torch.from_numpy(_block_order(blocks, key))


def _block_order(blocks: Tensor, key: int) -> NDArray[np.int64]:
    numbers, which = np.unique(blocks.numpy(), return_inverse=True)
    return np.argsort(numpy_permutation(key, len(numbers))[which], kind="stable")


def block_range(blocks: Tensor, start: int, stop: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split images into two parts along block boundaries, as far as the sizes allow.

    The blocks are shuffled by the seed. Images `start` to `stop` of that order are the second part.

    Returns:
        Positions outside and inside the range, each ascending. At most two blocks are split.
    """
    order = _block_order(blocks, make_key(seed, 0, Purpose.SPLIT))
    inside = np.zeros(len(blocks), dtype=bool)
    inside[order[start:stop]] = True
    return _both(inside)


def _both(inside: Mask) -> tuple[Tensor, Tensor]:
    """The positions outside and inside of a mask, each ascending."""
    return _positions(~inside), _positions(inside)


def _positions(mask: Mask) -> Tensor:
    import torch  # masks and draws need NumPy only

    return torch.from_numpy(np.flatnonzero(mask))
