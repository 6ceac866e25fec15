"""Predictions of a run for the test images.

An image that could not be read (`data.on_bad_image: skip`) has no prediction and is neither right
nor wrong. Accuracies and counts include only judged images, which are the images that were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.errors import ConfigError
from saccade.runs.folder import RunFolder


@dataclass(frozen=True)
class Predictions:
    """Predictions with one entry per test image, in the order of the data set.

    Attributes:
        target: int64 (n,), the true classes.
        predicted: int64 (n,), the predicted classes; -1 for an image that could not be read.
        confidence: float64 (n,), the probabilities of the predicted classes.
    """

    target: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Predictions:
        """Create from the arrays of `predictions.npz` or of an evaluation."""
        return cls(
            arrays["target"].astype(np.int64),
            arrays["predicted"].astype(np.int64),
            arrays["confidence"].astype(np.float64),
        )

    @cached_property
    def judged(self) -> NDArray[np.bool_]:
        """bool (n,), True for images that were read."""
        read: NDArray[np.bool_] = (self.target >= 0) & (self.predicted >= 0)
        return read

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """bool (n,), True for images that were read and classified correctly."""
        matches: NDArray[np.bool_] = self.target == self.predicted
        return self.judged & matches

    @property
    def wrong(self) -> NDArray[np.int64]:
        """Indices of misclassified images, the most confident first."""
        places = np.flatnonzero(self.judged & ~self.right)
        return places[np.argsort(-self.confidence[places], kind="stable")]

    @property
    def num_judged(self) -> int:
        """Number of images that were read."""
        return int(self.judged.sum())

    @property
    def num_skipped(self) -> int:
        """Number of images that could not be read."""
        return len(self.judged) - self.num_judged

    @property
    def accuracy(self) -> float | None:
        """Share of judged images that were classified correctly; None if there are none."""
        return float(self.right.sum() / self.num_judged) if self.num_judged else None

    def judged_only(self) -> Predictions:
        """Copy without the images that could not be read."""
        kept = self.judged
        return Predictions(self.target[kept], self.predicted[kept], self.confidence[kept])


def read_predictions(run: RunFolder, num_classes: int) -> Predictions | None:
    """Read the predictions of a run; None if it has none.

    Raises:
        ConfigError: The file is damaged or does not match `num_classes`.
    """
    arrays = run.predictions()
    if not arrays:
        return None
    missing = {"target", "predicted", "confidence"} - arrays.keys()
    if missing:
        raise ConfigError(f"predictions.npz has no {min(missing)!r}")
    found = Predictions.of(arrays)
    shapes = {found.target.shape, found.predicted.shape, found.confidence.shape}
    fits = len(shapes) == 1 and found.target.ndim == 1
    highest = max(found.target.max(initial=0), found.predicted.max(initial=0))
    if not fits or highest >= num_classes or not _are_shares(found.confidence):
        raise ConfigError(f"predictions.npz does not fit {num_classes} classes")
    return found


def _are_shares(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).all() and (values >= 0).all() and (values <= 1 + 1e-6).all())
