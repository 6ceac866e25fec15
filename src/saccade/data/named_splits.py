"""Split images by a hash of their names.

Unlike a split by position, adding or removing images does not move the others to another split.
Every name is hashed to a number in [0, 1), and images below the fraction are held out. By chance
this could hold out far too many or too few images of a small class. So the number held out of each
class is limited to within half of its exact share, or within one image. Where this limit applies,
an image can move when its class grows. It rarely applies to classes of a hundred images or more.
Subsets and folds have exact sizes: they take the images of a class in the order of these numbers.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "fold_by_name",
    "held_out",
    "hold_out_by_name",
    "name_draws",
    "quotas",
    "stratified_sample",
    "subset_by_name",
]

Draws = NDArray[np.float64]


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
    """Hold out about a fraction of every class.

    Args:
        labels: int64 (N,).
        draws: Numbers from `name_draws`.
        fraction: Fraction to hold out, in [0, 1).

    Returns:
        Positions kept and positions held out, each ascending. Every class keeps at least one image.
        At least one image is held out of a class whose share rounds to one or more.
    """
    out = held_out(labels.numpy(), draws, fraction)
    return _positions(~out), _positions(out)


def held_out(labels: NDArray[np.int64], draws: Draws, fraction: float) -> NDArray[np.bool_]:
    """Return the mask of the images that `hold_out_by_name` holds out."""
    out = np.zeros(len(labels), dtype=bool)
    for members in _classes(labels, draws):
        out[members[: _held_count(draws[members], fraction)]] = True
    wanted = round(fraction * len(labels))
    if wanted and not out.any():  # every class is too small to hold out an image
        out[_lowest(labels, draws, wanted)] = True
    return out


def stratified_sample(
    labels: NDArray[np.int64], order: NDArray[np.int64], fraction: float, *, spared: int
) -> NDArray[np.bool_]:
    """Return the mask of a sample of every class, the first in `order`, by largest remainder.

    Args:
        labels: int64 (N,).
        order: A permutation of the positions.
        fraction: Fraction to take.
        spared: Number of images of each class that are not taken.
    """
    shuffled = labels[order]
    classes, sizes = np.unique(shuffled, return_counts=True)
    held = [
        order[np.flatnonzero(shuffled == label)[:quota]]
        for label, quota in zip(
            classes, quotas(sizes, fraction).clip(max=sizes - spared), strict=True
        )
    ]
    out = np.zeros(len(labels), dtype=bool)
    out[np.concatenate([*held, np.empty(0, dtype=np.int64)]).astype(np.int64)] = True
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


def _lowest(labels: NDArray[np.int64], draws: Draws, count: int) -> NDArray[np.int64]:
    """Return the `count` images with the lowest numbers, excluding the last image of each class."""
    spared = [members[:-1] for members in _classes(labels, draws)]
    free = np.concatenate([*spared, np.empty(0, dtype=np.int64)]).astype(np.int64)
    return free[np.argsort(draws[free], kind="stable")][:count]


def subset_by_name(labels: Tensor, draws: Draws, count: int) -> Tensor:
    """Return positions of a stratified subset of `count` images, or all if there are fewer."""
    taken = np.full(len(labels), count >= len(labels))
    if taken.all():
        return _positions(taken)
    classes = list(_classes(labels.numpy(), draws))
    sizes = np.array([len(members) for members in classes])
    for members, quota in zip(classes, quotas(sizes, count / len(labels)), strict=True):
        taken[members[:quota]] = True
    return _positions(taken)


def fold_by_name(labels: Tensor, draws: Draws, folds: int, fold: int) -> tuple[Tensor, Tensor]:
    """Return positions outside and inside one fold of a stratified partition into `folds` parts.

    The folds of the same draws do not overlap and cover all images. Their sizes differ by at most
    one image, within each class and in total.
    """
    inside = np.zeros(len(labels), dtype=bool)
    before = 0  # images in previous classes; decides which folds get one more image
    for members in _classes(labels.numpy(), draws):
        parts = np.arange(before, before + len(members)) % folds
        sizes = np.bincount(parts, minlength=folds)
        start = int(sizes[:fold].sum())
        inside[members[start : start + sizes[fold]]] = True
        before += len(members)
    return _positions(~inside), _positions(inside)


def quotas(sizes: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Return the number of each class in a fraction of all, by the largest remainder method."""
    exact = sizes * fraction
    found: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = round(float(exact.sum())) - int(found.sum())
    by_remainder = np.argsort(found - exact, kind="stable")
    found[by_remainder[:missing]] += 1
    return found


def _classes(labels: NDArray[np.int64], draws: Draws) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of each class, ordered by their numbers."""
    order = np.argsort(draws, kind="stable")
    found = labels[order]
    for label in np.unique(found):
        yield order[found == label]


def _positions(mask: NDArray[np.bool_]) -> Tensor:
    import torch  # masks and draws need NumPy only

    return torch.from_numpy(np.flatnonzero(mask))
