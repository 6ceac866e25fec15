"""Fit power laws y = C N^p d^r by least squares of the logarithms, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from saccade.errors import ConfigError

__all__ = ["PowerLaw", "fit_power_law"]


@dataclass(frozen=True)
class PowerLaw:
    """y = constant N^tokens d^dim.

    Attributes:
        tokens: Exponent of N.
        tokens_error: Standard error of `tokens`, from the residuals.
        dim: Exponent of d.
        dim_error: Standard error of `dim`.
        constant: The factor.
        points: Number of fitted points.
    """

    tokens: float
    tokens_error: float
    dim: float
    dim_error: float
    constant: float
    points: int

    def __call__(self, tokens: float, dim: float) -> float:
        """Evaluate the law."""
        return float(self.constant * tokens**self.tokens * dim**self.dim)


def fit_power_law(points: Sequence[tuple[int, int, float]]) -> PowerLaw:
    """Fit (N, d, y) with y > 0.

    Raises:
        ConfigError: There are fewer than 4 points, or they do not determine both exponents.
    """
    table = np.asarray(points, dtype=np.float64).reshape(-1, 3)
    design = np.column_stack([np.log(table[:, :2]), np.ones(len(table))])
    if len(table) < 4 or np.linalg.matrix_rank(design) < 3:
        raise ConfigError(f"{len(table)} points; a power law needs 4, at two N and two d or more")
    target = np.log(table[:, 2])
    solution, *_ = np.linalg.lstsq(design, target, rcond=None)
    residuals = target - design @ solution
    variance = float(residuals @ residuals) / (len(table) - 3)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    (tokens, dim, offset), (tokens_error, dim_error, _) = solution.tolist(), errors.tolist()
    return PowerLaw(tokens, tokens_error, dim, dim_error, exp(offset), len(table))
