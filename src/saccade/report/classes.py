"""Confusion matrix and calibration of a group, over all of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.errors import shorten
from saccade.plotting import BAD, GOOD, GRID, MUTED
from saccade.report.groups import Group
from saccade.report.style import (
    Drawing,
    Margins,
    Series,
    axes_style,
    draw,
)
from saccade.runs import Predictions

__all__ = [
    "MAX_CLASSES",
    "ClassCounts",
    "Reliability",
    "class_accuracy",
    "class_counts",
    "confusion",
    "reliability",
    "reliability_diagram",
    "shaded",
    "short_names",
    "spread_classes",
]

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


MAX_CLASSES = 20
"""Maximum number of classes for names in a confusion matrix and for rows of class accuracy."""

RIGHT, WRONG = GOOD, BAD
STRONGEST = 0.6
"""Maximum opacity of a cell that shows a number."""


def confusion(counts: ClassCounts, names: Sequence[str]) -> Drawing:
    """Draw the confusion matrix, with correct predictions and errors in different colors.

    Errors are shaded by the cube root of their share, because most of them are rare.
    """
    size = len(names)
    ticks = short_names(names, 12) if size <= MAX_CLASSES else []
    longest = max(map(len, ticks), default=0)
    side = 0.3 + 0.062 * longest if longest > 2 else 0.42
    margins = Margins(left=max(0.42, side), right=0.08, top=0.08, bottom=max(0.42, side))

    def paint(axes: Any) -> None:
        axes.set_xlim(-0.5, size - 0.5)
        axes.set_ylim(size - 0.5, -0.5)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.tick_params(length=0, labelsize=7.5, pad=2)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(GRID)
        if size > MAX_CLASSES:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.imshow(shaded(counts), interpolation="none", aspect="auto")
            return
        axes.set_xticks(range(size), ticks, rotation=90 if longest > 2 else 0)
        axes.set_yticks(range(size), ticks)
        _paint_cells(axes, counts)

    square = 2.5
    return draw(
        paint,
        width=square + margins.left + margins.right,
        height=square + margins.top + margins.bottom,
        margins=margins,
    )


def short_names(names: Sequence[str], longest: int) -> list[str]:
    """Names cut to fit a tick label; equal results start with the number of the class."""
    short = [shorten(name, longest) for name in names]
    alike = Counter(short)
    return [
        own if alike[own] == 1 else shorten(f"{number} {name}", longest)
        for number, (own, name) in enumerate(zip(short, names, strict=True))
    ]


def _paint_cells(axes: Any, counts: ClassCounts) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    shares, colors = np.nan_to_num(counts.shares), shaded(counts)
    colors[..., 3] *= STRONGEST
    cells = list(zip(*np.nonzero(shares), strict=True))
    axes.add_collection(
        PatchCollection(
            [Rectangle((j - 0.47, i - 0.47), 0.94, 0.94) for i, j in cells],
            facecolors=[colors[cell] for cell in cells],
            linewidths=0,
        )
    )
    for i, j in cells if len(shares) <= 12 else []:
        text = f"{100 * shares[i, j]:.0f}" if shares[i, j] >= 0.01 else "<1"
        axes.text(j, i, text, ha="center", va="center", fontsize=7)


def shaded(counts: ClassCounts) -> NDArray[Any]:
    """(K, K, 4) RGBA colors with the share as opacity, for light and dark backgrounds."""
    from matplotlib.colors import to_rgba

    shares = np.nan_to_num(counts.shares)
    image = np.empty((*shares.shape, 4))
    image[:] = to_rgba(WRONG)
    image[..., 3] = np.cbrt(shares)
    diagonal = np.arange(len(shares))
    image[diagonal, diagonal] = to_rgba(RIGHT)
    image[diagonal, diagonal, 3] = shares.diagonal()
    return image


def spread_classes(accuracies: Mapping[str, Any], most: int = MAX_CLASSES) -> list[int]:
    """Classes to show, lowest mean accuracy first; if too many, those that differ most."""
    table = np.array(list(accuracies.values()))  # (groups, K)
    present = [int(k) for k in np.flatnonzero(~np.isnan(table).any(axis=0))]
    spread = table.max(axis=0) - table.min(axis=0)
    kept = sorted(present, key=lambda k: (-spread[k], table[:, k].mean(), k))[:most]
    return sorted(kept, key=lambda k: (table[:, k].mean(), k))


def class_accuracy(
    accuracies: Mapping[str, Any], names: Sequence[str], series: Mapping[str, Series]
) -> Drawing | None:
    """A row for each class and a marker for each group; None if no class has images."""
    shown = spread_classes(accuracies)
    if not shown:
        return None
    short = short_names(names, 16)
    labels = [short[k] for k in shown]

    def paint(axes: Any) -> None:
        axes_style(axes, x="accuracy", y="", percent="x")
        axes.grid(False, axis="y")
        axes.set_yticks(range(len(shown)), labels)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        for row in range(0, len(shown), 2):
            axes.axhspan(row - 0.5, row + 0.5, color=GRID, alpha=0.5, linewidth=0, zorder=0)
        offsets = np.linspace(-0.32, 0.32, len(accuracies)) if len(accuracies) > 1 else [0.0]
        for (name, values), offset in zip(accuracies.items(), offsets, strict=True):
            look = series[name]
            places = np.arange(len(shown)) + offset
            axes.plot(values[shown], places, look.marker, color=look.color, markersize=4.5)

    return draw(
        paint,
        height=0.7 + (0.17 + 0.032 * len(accuracies)) * len(shown),
        margins=Margins(left=0.35 + 0.07 * max(map(len, labels))),
        legend={name: series[name] for name in accuracies},
    )


def reliability_diagram(found: Reliability, look: Series) -> Drawing:
    """Accuracy over confidence; points below the diagonal mean overconfidence."""

    def paint(axes: Any) -> None:
        axes_style(axes, x="confidence", y="accuracy", percent="xy")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xticks((0, 0.25, 0.5, 0.75, 1))
        axes.set_yticks((0, 0.25, 0.5, 0.75, 1))
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        axes.bar(found.confidence, found.weight, width=0.045, color=GRID)
        axes.vlines(
            found.confidence, found.accuracy, found.confidence, color=look.color, alpha=0.35
        )
        axes.plot(found.confidence, found.accuracy, color=look.color, linewidth=1.2, alpha=0.6)
        axes.scatter(
            found.confidence,
            found.accuracy,
            s=10 + 60 * np.sqrt(found.weight),
            marker=look.marker,
            color=look.color,
            linewidths=0,
            clip_on=False,
            zorder=3,
        )
        axes.text(0, 1.045, f"ECE {100 * found.error:.1f} %", transform=axes.transAxes)

    return draw(paint, width=3.2, height=2.95, margins=Margins(right=0.26, top=0.28))
