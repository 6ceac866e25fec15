"""Confusion matrix and calibration of a group, over all of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.report.groups import Group
from saccade.runs import Predictions

__all__ = ["ClassCounts", "Reliability", "class_counts", "reliability"]

BINS = 15


@dataclass(frozen=True)
class ClassCounts:
    """(K, K) counts of test images over all seeds; rows are true classes."""

    confusion: NDArray[Any]

    @property
    def accuracy(self) -> NDArray[Any]:
        """The accuracy on each class; NaN for a class without images."""
        return self.shares.diagonal()

    @property
    def mean_accuracy(self) -> float:
        """The mean over the classes that have images."""
        return float(np.nanmean(self.accuracy))

    @property
    def shares(self) -> NDArray[Any]:
        """The counts divided by the sum of their row; NaN in rows without images."""
        rows = self.confusion.sum(1, keepdims=True)
        shares: NDArray[Any] = np.full(self.confusion.shape, np.nan)
        np.divide(self.confusion, rows, out=shares, where=rows > 0)
        return shares

    def mix_ups(self, most: int) -> list[tuple[int, int, float]]:
        """The largest errors as (true class, predicted class, share of the true class)."""
        shares = np.nan_to_num(self.shares)
        np.fill_diagonal(shares, 0)
        largest = np.argsort(-shares, axis=None, kind="stable")[:most]
        places = (divmod(int(flat), len(shares)) for flat in largest)
        return [(i, j, float(shares[i, j])) for i, j in places if shares[i, j] > 0]


@dataclass(frozen=True)
class Reliability:
    """Confidence and accuracy in bins of confidence.

    Attributes:
        confidence: Mean confidence of each bin that has images.
        accuracy: Accuracy in the bin.
        weight: Fraction of all images in the bin.
        error: Expected calibration error, averaged over runs.
        sureness: Mean confidence minus mean accuracy; positive means overconfident.
    """

    confidence: NDArray[Any]
    accuracy: NDArray[Any]
    weight: NDArray[Any]
    error: float
    sureness: float


def class_counts(group: Group, classes: int) -> ClassCounts | None:
    """The confusion matrix of a group; None if no run saved predictions."""
    kept = _kept(group)
    if not kept or not classes:
        return None
    flat = np.concatenate([own.target * classes + own.predicted for own in kept])
    return ClassCounts(np.bincount(flat, minlength=classes**2).reshape(classes, classes))


def reliability(group: Group) -> Reliability | None:
    """Confidence and accuracy in bins of equal width; None if no run saved predictions."""
    kept = _kept(group)
    if not kept:
        return None
    counts, right, sure = np.sum([_binned(own) for own in kept], axis=0)
    filled = counts > 0
    return Reliability(
        confidence=sure[filled] / counts[filled],
        accuracy=right[filled] / counts[filled],
        weight=counts[filled] / counts.sum(),
        error=float(np.mean([_calibration_error(own) for own in kept])),
        sureness=float((sure.sum() - right.sum()) / counts.sum()),
    )


def _kept(group: Group) -> list[Predictions]:
    """The predictions of each run, excluding images that could not be read."""
    found = [run.predictions for run in group.runs if run.predictions is not None]
    return [own.judged_only() for own in found if own.num_judged]


def _binned(own: Predictions) -> NDArray[Any]:
    """Number of images, number correct and summed confidence of each bin, (3, BINS)."""
    place = np.clip((own.confidence * BINS).astype(np.int64), 0, BINS - 1)
    right = own.target == own.predicted
    weights = (np.ones(len(place)), right, own.confidence)
    return np.stack([np.bincount(place, weight, minlength=BINS) for weight in weights])


def _calibration_error(own: Predictions) -> float:
    counts, right, sure = _binned(own)
    return float(np.abs(right - sure).sum() / counts.sum())
