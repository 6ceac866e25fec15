"""How sure a measured accuracy, or a difference of two, can be: images and seeds are both chance.

The data are a table y of S seeds by n images (1 right, 0 wrong; or the difference of two such
tables on the same seeds and images). Both were drawn from something larger, so both are random
effects, y_si = mean + seed_s + image_i + rest_si, and the mean of the table has the variance

    (MS_seeds + MS_images - MS_rest) / (S n)

in the mean squares of the two-way table. Images are many, so that all is known of their share;
seeds are few, and by luck three of them may agree. (The bootstrap over seeds and images is not
used: three seeds, drawn again, vary too little. Where seeds differ much its 95 % intervals hold the
truth 70 % of the time, these 93 % and more.)

The interval of an accuracy takes Satterthwaite's degrees of freedom: about 2 where three seeds
differ a lot, many where images are the larger source of chance. For differences that is not enough,
since corrections for many comparisons ask for small p values, and those come about by seeds that
agree by luck: of nine equal methods with three seeds that differ, one or more would be called
different in 18 % of comparisons. So, first, how far seeds scatter is taken from all methods of a
comparison together (`seed_noise`), unless the seeds of a pair scatter clearly more. Second, that is
an estimate with so many degrees of freedom, f: p is averaged over what it may be in truth,
f MS / chi^2_f, which is Student's t where seeds are all of the chance, and the normal distribution
where they are none of it.

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
    "SeedNoise",
    "accuracy_interval",
    "holm",
    "paired_difference",
    "seed_noise",
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


@dataclass(frozen=True)
class SeedNoise:
    """How far seeds scatter the difference of two methods, as it was estimated.

    Attributes:
        square: n times the variance of a difference over seeds, n being the number of images.
        freedom: Degrees of freedom of that estimate.
    """

    square: float
    freedom: float


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


def seed_noise(tables: Sequence[ArrayLike]) -> SeedNoise | None:
    """How far seeds scatter the difference of any two of some methods, or None of one seed.

    What a seed does to all of them alike is no part of it.

    Args:
        tables: One (S, n) for each method, two or more, in the same order of seeds and images.
    """
    found = [_table("tables", values) for values in tables]
    if len({table.shape for table in found}) != 1 or len(found) < 2:
        shapes = [table.shape for table in found]
        raise ValueError(f"tables of shapes {shapes}: expected two or more of the same seeds")
    seeds, images = found[0].shape
    if seeds == 1:
        return None
    means = np.stack([table.mean(axis=1) for table in found])  # (methods, S)
    rest = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
    freedom = (len(found) - 1) * (seeds - 1)
    return SeedNoise(2 * images * float((rest**2).sum()) / freedom, freedom)


def paired_difference(
    correct: ArrayLike,
    baseline: ArrayLike,
    *,
    noise: SeedNoise | None = None,
    confidence: float = CONFIDENCE,
) -> Difference:
    """How much more accurate one model family is than another, on the same seeds and images.

    Pairing takes out what both share: hard images are hard for both, and a seed gives both the same
    start and order of the data. The difference is never taken to be known better than to one image.

    Args:
        correct: (S, n), or (n,) for one seed.
        baseline: The other's, in the same order of seeds and images.
        noise: The scatter of seeds in the comparison that both belong to. These two alone are asked
            if it is not given, and as well if their own seeds scatter clearly more. Of no use with
            one seed.
        confidence: Of the interval.
    """
    mine, theirs = _table("correct", correct), _table("baseline", baseline)
    if mine.shape != theirs.shape:
        raise ValueError(
            f"correct has shape {mine.shape}, baseline {theirs.shape}: a paired comparison needs "
            "the same seeds and images"
        )
    table, own = mine - theirs, seed_noise([mine, theirs])
    errors = [_Error.of(table, own and (noise or own))]  # one seed has none
    if noise and own and own.square > noise.square * _clearly_more(own, noise):
        errors.append(_Error.of(table, own))
    mean = float(table.mean())
    half = max(error.half(confidence) for error in errors)
    p_value = max(error.beyond(abs(mean)) for error in errors)
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


def _mean_squares(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean squares of seeds (two or more), images and the rest, and their degrees of freedom."""
    seeds, images = table.shape
    by_seed, by_image = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_image[None, :] + table.mean()
    free = np.array([seeds - 1, images - 1, (seeds - 1) * (images - 1)], dtype=np.float64)
    squares = np.array([images * by_seed.var(), seeds * by_image.var(), (rest**2).mean()])
    return squares * [seeds, images, seeds * images] / free, free


def _crossed_mean(table: NDArray[np.float64]) -> tuple[float, float, float]:
    """The mean of a table of seeds by images, its variance and its degrees of freedom."""
    seeds, images = table.shape
    mean = float(table.mean())
    if seeds == 1:
        return mean, float(table.var(ddof=1)) / images, images - 1
    squares, free = _mean_squares(table)
    # The sum of squares can fall below one of its parts by chance, never in truth.
    total = max(squares[0] + squares[1] - squares[2], *squares)
    freedom = total**2 / (squares**2 / free).sum() if total > 0 else images - 1
    return mean, float(total) / (seeds * images), float(freedom)


@dataclass(frozen=True)
class _Error:
    """How far a mean may be from the truth: normal, with a standard error that is uncertain.

    Attributes:
        sizes: What the standard error may be.
        weights: How likely each is; they add up to 1.
    """

    sizes: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, table: NDArray[np.float64], noise: SeedNoise | None) -> _Error:
        """The error of a table's mean; of one seed, which has no noise, over its images alone."""
        seeds, images = table.shape
        rest = spread = 0.0
        if noise is None:
            noise = SeedNoise(float(table.var(ddof=1)), images - 1)
        else:
            _, by_image, rest = _mean_squares(table)[0]
            spread = max(0.0, by_image - rest)
        # f MS / u for each u = chi^2_f, on a grid of log u that leaves out less than 1e-14.
        f = noise.freedom
        low = math.log(f) - max(70 / f, 9 * math.sqrt(2 / f))
        x = np.linspace(low, math.log(f + 9 * math.sqrt(2 * f) + 40), 2001)
        weights = np.exp(f / 2 * (x - math.log(f)) - (np.exp(x) - f) / 2)
        square = np.maximum(noise.square * f / np.exp(x), rest) + spread
        sizes = np.maximum(np.sqrt(square / (seeds * images)), 1 / images)
        return cls(sizes, weights / weights.sum())

    def beyond(self, distance: float) -> float:
        """How likely a mean is farther than that from the truth, on either side."""
        if not distance:
            return 1.0
        return min(1.0, 2 * float(self.weights @ _special().ndtr(-distance / self.sizes)))

    def half(self, confidence: float) -> float:
        """The distance that a mean keeps to with this probability."""
        low, high = 0.0, float(self.sizes.max()) * 2 * _quantile(math.inf, confidence)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if self.beyond(middle) < 1 - confidence else (middle, high)
        return high


def _clearly_more(own: SeedNoise, noise: SeedNoise) -> float:
    """The ratio that estimates of the same noise exceed in one of five comparisons."""
    return float(_special().fdtri(own.freedom, noise.freedom, 0.8))


def _special() -> Any:
    """Student's t without `scipy.stats`, which takes most of a second to load."""
    from scipy import special

    return special


def _quantile(freedom: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}; expected a number between 0 and 1")
    return float(_special().stdtrit(freedom, (1 + confidence) / 2))
