"""Figures of a run's data: training samples, confused classes, confident mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from saccade.errors import shorten
from saccade.explain.sheet import SMALL, TEXT, TITLE, Sheet, pixels
from saccade.plotting import BAD, MUTED

__all__ = ["ConfusedPair", "Mistake", "draw_mistakes", "draw_pairs", "draw_samples"]

MARGIN, HEADER = 0.3, 0.8
CELL, GAP, CAPTION, BETWEEN = 0.92, 0.1, 0.3, 0.5
RESOLUTION = 128
HEADING = 44
"""Maximum length of the heading above a row of mistakes."""

ImageOf = Callable[[int], Tensor]
"""Index in the test set -> image (C, H, W) in 0..1."""


@dataclass(frozen=True)
class Mistake:
    """A test image by its index, its true class, and the predicted class."""

    place: int
    target: int
    predicted: int
    confidence: float


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes and the mistakes between them in each direction, most confident first."""

    first: int
    second: int
    first_as_second: list[Mistake]
    second_as_first: list[Mistake]

    @property
    def count(self) -> int:
        """Number of mistakes in both directions."""
        return len(self.first_as_second) + len(self.second_as_first)


def draw_samples(
    run: str, sides: Mapping[str, Sequence[tuple[Tensor, str]]], columns: int = 6
) -> Sheet:
    """Draw training images with labels, as stored and as trained on, side by side."""
    rows = max(-(-len(images) // columns) for images in sides.values())
    block = columns * (CELL + GAP) - GAP
    width = 2 * MARGIN + len(sides) * (block + BETWEEN) - BETWEEN
    sheet = Sheet(width, HEADER + 0.3 + rows * (CELL + 0.24) + 0.1)
    _title(sheet, run, "samples of the training set")
    for number, (name, images) in enumerate(sides.items()):
        left = MARGIN + number * (block + BETWEEN)
        sheet.words(shorten(name, 80), left, HEADER + 0.14, size=TEXT, bold=True)
        for place, (image, label) in enumerate(images):
            x = left + place % columns * (CELL + GAP)
            y = HEADER + 0.3 + place // columns * (CELL + 0.24)
            sheet.picture(pixels(image, RESOLUTION), x, y, CELL)
            sheet.words(shorten(label, 17), x, y + CELL + 0.12, size=SMALL, color=MUTED)
    return sheet


def draw_mistakes(
    run: str,
    mistakes: Sequence[Mistake],
    subtitle: str,
    names: Sequence[str],
    image_of: ImageOf,
    columns: int = 6,
) -> Sheet:
    """Draw the most confident mistakes of a model."""
    rows = -(-len(mistakes) // columns)
    width = 2 * MARGIN + columns * (CELL + 0.22) - 0.22
    sheet = Sheet(width, HEADER + max(1, rows) * (CELL + CAPTION + 0.1) + 0.1)
    _title(sheet, run, f"most confident mistakes   ·   {subtitle}")
    for number, mistake in enumerate(mistakes):
        x = MARGIN + number % columns * (CELL + 0.22)
        y = HEADER + number // columns * (CELL + CAPTION + 0.1)
        _draw_mistake(sheet, mistake, names, image_of, x, y)
    return sheet


def draw_pairs(
    run: str,
    pairs: Sequence[ConfusedPair],
    subtitle: str,
    names: Sequence[str],
    image_of: ImageOf,
    columns: int = 4,
) -> Sheet:
    """Draw the most confused pairs of classes, with examples in each direction."""
    block = columns * (CELL + GAP) - GAP
    row = CELL + CAPTION + 0.36
    sheet = Sheet(2 * MARGIN + 2 * block + BETWEEN, HEADER + max(1, len(pairs)) * row + 0.1)
    _title(sheet, run, f"most confused pairs   ·   {subtitle}")
    for number, pair in enumerate(pairs):
        top = HEADER + number * row
        sides = (
            (pair.first, pair.second, pair.first_as_second),
            (pair.second, pair.first, pair.second_as_first),
        )
        for side, (true, predicted, mistakes) in enumerate(sides):
            left = MARGIN + side * (block + BETWEEN)
            heading = _heading(names[true], names[predicted])
            sheet.words(heading, left, top + 0.12, bold=True)
            sheet.words(f"{len(mistakes)} ×", left + block, top + 0.12, color=MUTED, align="right")
            for place, mistake in enumerate(mistakes[:columns]):
                _draw_mistake(
                    sheet, mistake, names, image_of, left + place * (CELL + GAP), top + 0.22
                )
    return sheet


def _heading(true: str, predicted: str) -> str:
    """Name both classes; long names are cut in the middle if the heading is too long."""
    whole = f"{true} taken for {predicted}"
    if len(whole) <= HEADING:
        return whole
    return f"{_without_middle(true)} taken for {_without_middle(predicted)}"


def _without_middle(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:8]}…{name[-7:]}"


def _title(sheet: Sheet, run: str, subtitle: str) -> None:
    sheet.words(shorten(run, 48), MARGIN, 0.36, size=TITLE, bold=True)
    sheet.words(subtitle, MARGIN, 0.56, color=MUTED)


def _draw_mistake(
    sheet: Sheet, mistake: Mistake, names: Sequence[str], image_of: ImageOf, x: float, y: float
) -> None:
    """Draw an image, its predicted class with the confidence, and its true class."""
    sheet.picture(pixels(image_of(mistake.place), RESOLUTION), x, y, CELL)
    predicted = f"{shorten(names[mistake.predicted], 11)}  {100 * mistake.confidence:.0f} %"
    sheet.words(predicted, x, y + CELL + 0.13, size=SMALL, color=BAD)
    truth = f"is {shorten(names[mistake.target], 13)}"
    sheet.words(truth, x, y + CELL + 0.25, size=SMALL, color=MUTED)
