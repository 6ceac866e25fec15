"""How sure a measured accuracy, or a difference of two, can be: images and seeds are both chance.

The data are a table y of S seeds by n images (1 right, 0 wrong; or the difference of two such
tables on the same seeds and images). Both were drawn from something larger, so both are random
effects, y_si = mean + seed_s + image_i + rest_si, and the mean of the table has the variance

    (MS_seeds + MS_images - MS_rest) / (S n)

in the mean squares of the two-way table, with Satterthwaite's degrees of freedom. With three seeds
that differ a lot these are about 2, and the interval is wide, as it has to be; where the test
images are the larger source of chance they grow and the interval becomes the usual one. (The
bootstrap over seeds and images is not used: three seeds, drawn again, vary too little. Where seeds
differ much its 95 % intervals hold the truth 70 % of the time, these 93 %.)

What this generalises over: new seeds (start, order of the data, random features) of the same recipe
and new test images of the same kind. Not over other recipes, data sets or training sets. With one
seed it says nothing about seeds: the interval is that of this one trained model on new images, and
a difference may be the luck of a seed. Needs numpy and scipy, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CONFIDENCE",
    "Difference",
    "Interval",
    "accuracy_interval",
    "holm",
    "paired_difference",
]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the interval around it."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """A difference of two means, its interval, and how likely so large a one is by chance.

    Attributes:
        p_value: Two-sided, for the hypothesis that the true difference is 0.
    """

    p_value: float


def accuracy_interval(correct: ArrayLike, *, confidence: float = CONFIDENCE) -> Interval:
    """The accuracy of a model family and its interval over new seeds and new images.

    It is Wilson's interval, for as many independent images as the table's variance is worth, and
    with Student's t: it stays within 0 and 1 and is not empty when every image is right.

    Args:
        correct: (S, n), or (n,) for one seed: whether each image was classified rightly.
        confidence: Share of such intervals that hold the true value.
    """
    table = _table("correct", correct)
    mean, variance, freedom = _crossed_mean(table)
    t = _quantile(freedom, confidence)
    independent = mean * (1 - mean) / variance if variance > 0 else float(table.shape[1])
    weight = 1 + t * t / independent
    centre = (mean + t * t / (2 * independent)) / weight
    half = t / weight * math.sqrt(variance + t * t / (4 * independent**2))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half))


def paired_difference(
    correct: ArrayLike, baseline: ArrayLike, *, confidence: float = CONFIDENCE
) -> Difference:
    """How much more accurate one model family is than another, on the same seeds and images.

    Pairing takes out what both share: hard images are hard for both, and a seed gives both the same
    start and order of the data. The difference is never taken to be known better than to one image.

    Args:
        correct: (S, n), or (n,) for one seed.
        baseline: The other's, in the same order of seeds and images.
        confidence: Of the interval.
    """
    mine, theirs = _table("correct", correct), _table("baseline", baseline)
    if mine.shape != theirs.shape:
        raise ValueError(
            f"correct has shape {mine.shape}, baseline {theirs.shape}: a paired comparison needs "
            "the same seeds and images"
        )
    mean, variance, freedom = _crossed_mean(mine - theirs)
    error = max(math.sqrt(variance), 1 / mine.shape[1])
    half = _quantile(freedom, confidence) * error
    p_value = 2 * float(_special().stdtr(freedom, -abs(mean) / error))
    return Difference(mean, max(-1.0, mean - half), min(1.0, mean + half), p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values that hold for all of the comparisons together.

    Calling those below 0.05 real errs, anywhere in the family, in at most 5 % of families, whatever
    the dependence between the comparisons.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


def _table(name: str, values: ArrayLike) -> NDArray[np.float64]:
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.shape[1] < 2 or not table.shape[0]:
        raise ValueError(f"{name} has shape {table.shape}; expected (seeds, images), 2 images up")
    return table


def _crossed_mean(table: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of a table of seeds by images, its variance and its degrees of freedom."""
    seeds, images = table.shape
    mean = float(table.mean())
    if seeds == 1:
        return mean, float(table.var(ddof=1)) / images, images - 1
    by_seed, by_image = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_image[None, :] + mean
    free = np.array([seeds - 1, images - 1, (seeds - 1) * (images - 1)])
    squares = np.array([images * by_seed.var(), seeds * by_image.var(), (rest**2).mean()])
    squares = squares * [seeds, images, seeds * images] / free
    # The sum of squares can fall below one of its parts by chance, never in truth.
    total = max(squares[0] + squares[1] - squares[2], *squares)
    freedom = total**2 / (squares**2 / free).sum() if total > 0 else images - 1
    return mean, float(total) / (seeds * images), float(freedom)


def _special() -> Any:
    """Student's t without `scipy.stats`, which takes most of a second to load."""
    from scipy import special

    return special


def _quantile(freedom: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}; expected a number between 0 and 1")
    return float(_special().stdtrit(freedom, (1 + confidence) / 2))
