"""Below which confidence a prediction is called unsure, with a bound on the error above it.

The threshold is chosen on validation images, as in selection with guaranteed risk
(arXiv:1705.08500). Candidates are the thresholds that accept fixed shares of the images, the most
confident ones. The error among the accepted images has the exact binomial bound of Clopper and
Pearson at level (1 - level) / number of candidates. The lowest threshold with a bound of at most
`max_error` is chosen. So the bound holds for it with probability `level`, for new images of the
same kind. It says nothing about images of other kinds.

DEVIATION: the paper searches the thresholds by bisection. The bound is loose for few images, so
that bisection from the middle fails for small validation sets that pass as a whole.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.errors import ConfigError

__all__ = ["LEVEL", "MAX_ERROR", "Threshold", "calibrate_threshold"]

MAX_ERROR = 0.02
LEVEL = 0.95
SHARES = (1.0, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of the images that the candidate thresholds accept."""


@dataclass(frozen=True)
class Threshold:
    """A threshold on the confidence, and how it was chosen.

    Attributes:
        below: Predictions with a lower confidence are unsure.
        max_error: Upper bound of the error of the other predictions.
        level: Probability with which the bound holds.
        count: Number of images on which it was chosen.
        accepted: Number of these that are not unsure.
        errors: Wrong predictions among the accepted ones.
    """

    below: float
    max_error: float
    level: float
    count: int
    accepted: int
    errors: int

    def as_record(self) -> dict[str, Any]:
        """The values for the record of a saved model."""
        return asdict(self)


def calibrate_threshold(
    confidence: NDArray[np.floating[Any]],
    correct: NDArray[np.bool_],
    *,
    max_error: float = MAX_ERROR,
    level: float = LEVEL,
) -> Threshold:
    """The lowest threshold whose accepted images are wrong in at most `max_error` of the cases.

    Args:
        confidence: The probability of each predicted class, (m,).
        correct: True for correct predictions, (m,).
        max_error: Largest acceptable error among the accepted images.
        level: Probability with which the bound holds.

    Raises:
        ConfigError: No threshold reaches `max_error`: the model is too weak or there are too few
            images.
    """
    count = len(confidence)
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence, wrong = confidence[order], np.cumsum(~correct[order])
    for share in SHARES:
        accepted = _with_ties(sorted_confidence, max(1, round(share * count)))
        errors = int(wrong[accepted - 1])
        if _bound(errors, accepted, (1 - level) / len(SHARES)) <= max_error:
            below = float(sorted_confidence[accepted - 1])
            return Threshold(below, max_error, level, count, accepted, errors)
    raise ConfigError(
        f"max_error must be reachable with {count} images, got {max_error}: the model is too weak, "
        "or there are too few validation images"
    )


def _with_ties(confidence: NDArray[np.floating[Any]], accepted: int) -> int:
    """The number of images that are at least as confident as image `accepted - 1`."""
    return int(np.searchsorted(-confidence, -confidence[accepted - 1], side="right"))


def _bound(errors: int, count: int, level: float) -> float:
    """Upper bound of a share by Clopper and Pearson, which holds with probability 1 - `level`."""
    from scipy.special import betaincinv

    if errors == count:
        return 1.0
    return float(betaincinv(errors + 1, count - errors, 1 - level))
