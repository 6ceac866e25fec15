"""Predict the lengths of intermediate results from the moments of Gaussian q, k and v.

With m1 = E|x|^2 and m2 = E|x|^4 of a row of q or k, whose directions are independent and uniform,

    E s^2 = m1^2 / d          E s^4 = 3 m2^2 / (d (d+2))          s = q.k

and the squared length of each result is a sum over its coordinates; `docs/analyze.md` derives them.
A row of v is (1, Gaussian) times a factor f. For large N the first term in each root dominates and
gives the exponents of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "PUBLISHED_WEIGHTS",
    "QUANTITIES",
    "SETTINGS",
    "TAYLOR_WEIGHTS",
    "Quantity",
    "Setting",
    "predict",
]

TAYLOR_WEIGHTS = (0.5, 1.0, 1.0)
"""Coefficients of s^2, s and 1."""

PUBLISHED_WEIGHTS = (1.0, 0.5, 0.5)
"""Coefficients in the published analysis script, which differ from the Taylor polynomial."""


@dataclass(frozen=True)
class Setting:
    """A way of preparing q, k and v.

    Attributes:
        words: Description for tables and figures.
        unit: True if rows of q and k are divided by their length.
        scaled: True if they are then multiplied by alpha = d^(1/4), and v is divided by N.
    """

    words: str
    unit: bool
    scaled: bool

    def alpha(self, dim: int) -> float:
        """The factor of q and k."""
        return dim**0.25 if self.scaled else 1.0

    def value_factor(self, tokens: int) -> float:
        """The factor of v and of the 1 in front of it."""
        return 1 / tokens if self.scaled else 1.0

    def prepare(self, x: Tensor) -> Tensor:
        """Apply the setting to q or k (B, N, d)."""
        return F.normalize(x, dim=-1) * self.alpha(x.shape[-1]) if self.unit else x

    def moments(self, dim: int) -> tuple[float, float]:
        """E|x|^2 and E|x|^4 of a row of q or k."""
        if self.unit:
            return self.alpha(dim) ** 2, self.alpha(dim) ** 4
        return dim, dim * (dim + 2)


SETTINGS = {
    "none": Setting("q, k, v as drawn", unit=False, scaled=False),
    "unit": Setting("rows of q and k of length 1", unit=True, scaled=False),
    "scaled": Setting("rows of q and k of length d^(1/4), v / N", unit=True, scaled=True),
}

Exponents = tuple[float, float]


@dataclass(frozen=True)
class Quantity:
    """An intermediate result.

    Attributes:
        length: Function of setting, N and d that returns the expected length.
        exponents: For each setting, powers of N and d of the term that dominates for large N.
    """

    length: Callable[[Setting, int, int], float]
    exponents: dict[str, Exponents]


def predict(quantity: str, setting: Setting, tokens: int, dim: int) -> float:
    """The expected length of a quantity."""
    return QUANTITIES[quantity].length(setting, tokens, dim)


def _score_moments(setting: Setting, dim: int) -> tuple[float, float]:
    """E s^2 and E s^4."""
    m1, m2 = setting.moments(dim)
    return m1**2 / dim, 3 * m2**2 / (dim * (dim + 2))


def _row(setting: Setting, tokens: int, dim: int) -> float:
    """|x⊠x| = |x|^2."""
    del tokens
    return setting.moments(dim)[0]


def _state(setting: Setting, tokens: int, dim: int) -> float:
    """The column of ones sums k k^T; the d other columns sum it with random signs."""
    _, m2 = setting.moments(dim)
    square, _ = _score_moments(setting, dim)
    ones = tokens * (tokens - 1) * square + tokens * m2
    return setting.value_factor(tokens) * sqrt(ones + tokens * dim * m2)


def _square(setting: Setting, tokens: int, dim: int) -> float:
    """sum s^2 in the first coordinate grows like N; the d others grow like sqrt(N)."""
    m1, m2 = setting.moments(dim)
    _, fourth = _score_moments(setting, dim)
    first = tokens * (tokens - 1) * m2 * m1**2 / dim**2 + tokens * fourth
    return setting.value_factor(tokens) * sqrt(first + tokens * dim * fourth)


def _linear(setting: Setting, tokens: int, dim: int) -> float:
    """sum s has mean 0, so every coordinate grows like sqrt(N)."""
    square, _ = _score_moments(setting, dim)
    return setting.value_factor(tokens) * sqrt(tokens * square * (1 + dim))


def _constant(setting: Setting, tokens: int, dim: int) -> float:
    """N in the first coordinate, sqrt(N) in the others."""
    return setting.value_factor(tokens) * sqrt(tokens**2 + tokens * dim)


def _denominator(setting: Setting, tokens: int, dim: int) -> float:
    """N times the mean weight."""
    return setting.value_factor(tokens) * tokens * _weight_moments(setting, dim)[0]


def _output(setting: Setting, tokens: int, dim: int) -> float:
    """A mean of N Gaussian rows with weights w: sqrt(d E w^2 / N) / E w."""
    mean, square = _weight_moments(setting, dim)
    return sqrt(dim * square / tokens) / mean


def _weight_moments(setting: Setting, dim: int) -> tuple[float, float]:
    """E w and E w^2 of w = s^2/2 + alpha^2 s + alpha^4, assuming rows of q of equal length."""
    m1, m2 = setting.moments(dim)
    square, fourth = _score_moments(setting, dim)
    fourth *= m1**2 / m2 if not setting.unit else 1.0
    linear, constant = setting.alpha(dim) ** 2, setting.alpha(dim) ** 4
    mean = constant + square / 2
    return mean, constant**2 + (linear**2 + constant) * square + fourth / 4


def _exponents(none: Exponents, unit: Exponents, scaled: Exponents) -> dict[str, Exponents]:
    return {"none": none, "unit": unit, "scaled": scaled}


QUANTITIES = {
    "q⊠q": Quantity(_row, _exponents((0, 1), (0, 0), (0, 0.5))),
    "k⊠k": Quantity(_row, _exponents((0, 1), (0, 0), (0, 0.5))),
    "(k⊠k)ᵀv": Quantity(_state, _exponents((1, 0.5), (1, -0.5), (0, 0))),
    "(qkᵀ)²v": Quantity(_square, _exponents((1, 1), (1, -1), (0, 0))),
    "qkᵀv": Quantity(_linear, _exponents((0.5, 1), (0.5, 0), (-0.5, 0.5))),
    "Σv": Quantity(_constant, _exponents((1, 0), (1, 0), (0, 0))),
    "denominator": Quantity(_denominator, _exponents((1, 1), (1, 0), (0, 1))),
    "output": Quantity(_output, _exponents((-0.5, 0.5), (-0.5, 0.5), (-0.5, 0.5))),
}
