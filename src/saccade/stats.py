"""Intervals and tests for accuracies and their differences, over seeds and test images.

The data are a table y of S seeds by n images: 1 if an image was classified correctly and 0 if not,
or the difference of two such tables. Seeds and images are crossed random effects,
y_si = mean + seed_s + image_i + rest_si, and the mean of the table has the variance

    (MS_seeds + MS_images - MS_rest) / (S n)

where MS are the mean squares of the two-way table. There are many images, so their variance is
known well. There are few seeds, so their variance is an estimate with f degrees of freedom.
Intervals and p values are averaged over the possible true values of that variance, f MS / chi^2_f.
If seeds are the only source of variation, this gives Student's t distribution. If seeds cause no
variation, it gives the normal distribution.

A difference is tested twice, and its p value is the larger one.

- With the pooled seed scatter of all methods in the comparison: (K-1)(S-1) degrees of freedom for
  K methods. This test is powerful, but only valid if all methods scatter equally.
- With the seed scatter of its own two methods: S-1 degrees of freedom. This test is valid for any
  scatter, but has little power.

Both ignore the effect of a seed that is common to all methods. `corrected_p_values` corrects a
family of differences. It corrects the first test by Holm's method, and the second by a factor of
S/2 (at most the number of differences, and at least 1.5). A small factor is enough, because the
second test only has to guard against the few methods that scatter more than the others. The factor
was chosen by simulation: it is a simple rule that keeps the family-wise error near 5 % or below in
every case of `benchmarks/family_wise_error.py`. docs/decisions/0007 has the figures.

The results generalize to new seeds (initial weights, order of the data, random features) of the
same recipe and to new test images of the same kind. They do not generalize to other recipes, data
sets or training sets. With one seed, intervals and tests are about these trained models on new
images, and a difference may be due to the seed. Needs numpy and scipy, but not torch.
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
    "Scatter",
    "SeedNoise",
    "accuracy_interval",
    "corrected_p_values",
    "holm",
    "own_factor",
    "paired_difference",
    "seed_scatter",
]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """A difference of two means, with its interval and its tests.

    Attributes:
        p_shared: Two-sided p value with the pooled seed scatter of all methods.
        p_own: P value with the seed scatter of these two methods only; None with one seed.
        seeds: Number of seeds.
    """

    p_shared: float
    p_own: float | None
    seeds: int

    @property
    def p_value(self) -> float:
        """The larger of the two p values, without correction for a family."""
        return self.p_shared if self.p_own is None else max(self.p_shared, self.p_own)


@dataclass(frozen=True)
class SeedNoise:
    """Estimated variance of the difference of two methods over seeds.

    Attributes:
        square: n times the variance of a difference over seeds, where n is the number of images.
        freedom: Degrees of freedom of that estimate.
    """

    square: float
    freedom: float


@dataclass(frozen=True)
class Scatter:
    """Scatter of the accuracies of several methods over seeds, without the common seed effect.

    Attributes:
        squares: For each method, n times its variance over seeds.
        seeds: Number of seeds, two or more.
    """

    squares: tuple[float, ...]
    seeds: int

    @property
    def shared(self) -> SeedNoise:
        """Pooled noise of the difference of any two methods, assuming equal scatter."""
        methods = len(self.squares)
        return SeedNoise(2 * sum(self.squares) / methods, (methods - 1) * (self.seeds - 1))

    def of_pair(self, first: int, second: int) -> SeedNoise:
        """Noise of the difference of two methods, given by index, from their own scatter."""
        return SeedNoise(self.squares[first] + self.squares[second], self.seeds - 1)


def accuracy_interval(correct: ArrayLike, *, confidence: float = CONFIDENCE) -> Interval:
    """Accuracy of a method and its interval over new seeds and new images.

    This is Wilson's interval with the variance of the table in place of the binomial variance. It
    stays within 0 and 1, and has a positive width even if every image is classified correctly.

    Args:
        correct: (S, n), or (n,) for one seed: True for images that were classified correctly.
        confidence: Probability that such an interval contains the true value.
    """
    table = _table("correct", correct)
    seeds, images = table.shape
    noise = None if seeds == 1 else SeedNoise(_mean_squares(table)[0], seeds - 1)
    mean = float(table.mean())
    room = mean * (1 - mean)
    if room > 0:
        ratio = _Error.of(table, noise).half(confidence) ** 2 / room
    else:
        ratio = _quantile(images - 1, confidence) ** 2 / images
    center = (mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(ratio * (room + ratio / 4)) / (1 + ratio)
    return Interval(mean, max(0.0, center - half), min(1.0, center + half))


def seed_scatter(tables: Sequence[ArrayLike]) -> Scatter | None:
    """Seed scatter of the accuracies of several methods; None with one seed.

    The mean effect of a seed on all methods is removed first.

    Args:
        tables: One (S, n) table for each of two or more methods, with seeds and images in the same
            order.
    """
    found = [_table("tables", values) for values in tables]
    if len({table.shape for table in found}) != 1 or len(found) < 2:
        shapes = [table.shape for table in found]
        raise ValueError(f"tables must be two or more of the same shape, got shapes {shapes}")
    seeds, images = found[0].shape
    if seeds == 1:
        return None
    means = np.stack([table.mean(axis=1) for table in found])  # (methods, S)
    rest = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
    unbiased = len(found) / (len(found) - 1)  # the removed mean contains a share of each
    return Scatter(tuple((images * unbiased * rest.var(axis=1, ddof=1)).tolist()), seeds)


def paired_difference(
    correct: ArrayLike,
    baseline: ArrayLike,
    *,
    shared: SeedNoise | None = None,
    own: SeedNoise | None = None,
    confidence: float = CONFIDENCE,
) -> Difference:
    """Difference in accuracy of two methods on the same seeds and images.

    Pairing removes what both methods share: hard images are hard for both, and a seed gives both
    the same initial weights and order of the data. The standard error is at least one image. The
    interval is the wider of the two that follow from `shared` and `own`.

    Args:
        correct: (S, n), or (n,) for one seed.
        baseline: Table of the other method, with seeds and images in the same order.
        shared: Pooled seed noise of the whole comparison (`Scatter.shared`); by default that of
            these two methods. Ignored with one seed.
        own: Seed noise of these two methods (`Scatter.of_pair`); by default from their differences.
        confidence: Confidence level of the interval.
    """
    mine, theirs = _table("correct", correct), _table("baseline", baseline)
    if mine.shape != theirs.shape:
        raise ValueError(
            f"baseline must have the shape of correct, {mine.shape}, got {theirs.shape}; a paired "
            "comparison needs the same seeds and images"
        )
    table, mean, seeds = mine - theirs, float((mine - theirs).mean()), len(mine)
    alone = seed_scatter([mine, theirs])
    if alone is None:
        by_shared, by_own = _Error.of(table, None), None
    else:
        by_shared = _Error.of(table, shared or alone.shared)
        by_own = _Error.of(table, own or alone.shared)
    half = (by_own or by_shared).half(confidence)
    if by_shared.beyond(half) > 1 - confidence:
        half = by_shared.half(confidence)
    return Difference(
        mean,
        max(-1.0, mean - half),
        min(1.0, mean + half),
        p_shared=by_shared.beyond(abs(mean)),
        p_own=by_own.beyond(abs(mean)) if by_own else None,
        seeds=seeds,
    )


def corrected_p_values(family: Sequence[Difference]) -> list[float]:
    """P values corrected for a family of differences.

    If differences with values below 0.05 are called significant, about 5 % of families or fewer
    contain a false claim. This is no theorem: docs/decisions/0007 lists the simulated cases.
    """
    corrected = holm([own.p_shared for own in family])
    return [
        p if own.p_own is None else max(p, min(1.0, own_factor(own.seeds, len(family)) * own.p_own))
        for p, own in zip(corrected, family, strict=True)
    ]


def own_factor(seeds: int, size: int) -> float:
    """Factor for `p_own` in a family of `size` differences."""
    return max(1.5, min(float(size), seeds / 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p values of a family by Holm's method.

    If comparisons with values below 0.05 are called significant, at most 5 % of families contain a
    false claim, for any dependence between the comparisons.
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
        raise ValueError(
            f"{name} must have shape (seeds, images) with 2 or more images, got {table.shape}"
        )
    return table


def _mean_squares(table: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean squares of seeds (two or more), images and the rest."""
    seeds, images = table.shape
    by_seed, by_image = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_image[None, :] + table.mean()
    return (
        images * float(by_seed.var(ddof=1)),
        seeds * float(by_image.var(ddof=1)),
        float((rest**2).sum()) / ((seeds - 1) * (images - 1)),
    )


@dataclass(frozen=True)
class _Error:
    """Error distribution of a mean: normal with an uncertain standard error.

    Attributes:
        sizes: Possible values of the standard error.
        weights: Probabilities of these values; they sum to 1.
    """

    sizes: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, table: NDArray[np.float64], noise: SeedNoise | None) -> _Error:
        """Error of a table's mean. Without `noise`, only the variation over images counts."""
        seeds, images = table.shape
        rest = spread = 0.0
        if noise is None:
            noise = SeedNoise(float(table.var(ddof=1)), images - 1)
        else:
            _, by_image, rest = _mean_squares(table)
            spread = max(0.0, by_image - rest)
        # f MS / u for u = chi^2_f, on a grid of log u that omits less than 1e-14 of the mass.
        f = noise.freedom
        low = math.log(f) - max(70 / f, 9 * math.sqrt(2 / f))
        x = np.linspace(low, math.log(f + 9 * math.sqrt(2 * f) + 40), 2001)
        weights = np.exp(f / 2 * (x - math.log(f)) - (np.exp(x) - f) / 2)
        square = np.maximum(noise.square * f / np.exp(x), rest) + spread
        sizes = np.maximum(np.sqrt(square / (seeds * images)), 1 / images)
        return cls(sizes, weights / weights.sum())

    def beyond(self, distance: float) -> float:
        """Two-sided probability that the error is larger than `distance`."""
        if not distance:
            return 1.0
        return min(1.0, 2 * float(self.weights @ _special().ndtr(-distance / self.sizes)))

    def half(self, confidence: float) -> float:
        """Half width of the interval at this confidence level."""
        _check_confidence(confidence)
        distance = 0.0  # Newton's method from below: `beyond` is convex, so it never overshoots
        for _ in range(100):
            density = self.weights @ (np.exp(-((distance / self.sizes) ** 2) / 2) / self.sizes)
            left = 2 * float(self.weights @ _special().ndtr(-distance / self.sizes))
            step = (left - (1 - confidence)) / (2 * float(density) / math.sqrt(2 * math.pi))
            distance += step
            if step <= 1e-13 * distance:
                break
        return distance


def _special() -> Any:
    """Import `scipy.special` lazily. `scipy.stats` would take most of a second to load."""
    from scipy import special

    return special


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a number between 0 and 1, got {confidence}")


def _quantile(freedom: float, confidence: float) -> float:
    _check_confidence(confidence)
    return float(_special().stdtrit(freedom, (1 + confidence) / 2))
