"""One figure per image: the image, the prediction and the attention maps.

Each model has a column: the image, the summary map and the most probable classes at the top, then a
row for each layer with its heads and their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saccade.errors import shorten
from saccade.explain.explanation import Explanation
from saccade.explain.maps import AttentionMaps, Method, relative_to_uniform
from saccade.explain.sheet import (
    BAD,
    GOOD,
    GRID,
    INK,
    MUTED,
    SMALL,
    TEXT,
    TITLE,
    Sheet,
    overlay,
    pixels,
)

__all__ = ["draw_explanations"]

MARGIN, GAP = 0.3, 0.14
LARGE, HEADER = 1.75, 0.78
BARS = 2.1
HEADS_BELOW = LARGE + 0.56
LAYER_NAME = 0.62
CELLS_WIDTH, MIN_CELL = 5.4, 0.84  # a smaller map has no room for its caption
CAPTION = 0.2
SHOWN_CLASSES = 5
SUMMARIES: dict[Method, str] = {
    "attention": "mean attention",
    "rollout": "attention rollout",
    "gradient": "gradient rollout",
}
NOTE = (
    "Colors run from the smallest to the largest weight of each map.",
    "Numbers: these two weights, divided by the weight of a token in a uniform map.",
)


def draw_explanations(explanations: Sequence[Explanation]) -> Sheet:
    """Draw the explanations of one image by one or more models, side by side."""
    widths = [_block_width(explanation.maps) for explanation in explanations]
    rows = max(len(explanation.maps.layers) for explanation in explanations)
    cell = max(_cell(explanation.maps) for explanation in explanations)
    height = HEADER + HEADS_BELOW + rows * (cell + CAPTION) + 0.55
    sheet = Sheet(2 * MARGIN + sum(widths) + 3 * MARGIN * (len(widths) - 1), height)
    left = MARGIN
    for explanation, width in zip(explanations, widths, strict=True):
        _draw_block(sheet, explanation, left, width)
        left += width + 3 * MARGIN
    for line, text in enumerate(NOTE):
        sheet.words(text, MARGIN, height - 0.3 + 0.14 * line, size=SMALL, color=MUTED)
    return sheet


def _cell(maps: AttentionMaps) -> float:
    """Side of the map of a head in inches."""
    return max(MIN_CELL, min(1.05, CELLS_WIDTH / (len(maps.heads) + 1) - 0.08))


def _block_width(maps: AttentionMaps) -> float:
    cells = LAYER_NAME + (len(maps.heads) + 1) * (_cell(maps) + 0.08) + 0.12
    return max(2 * (LARGE + GAP) + 0.16 + BARS, cells)


def _draw_block(sheet: Sheet, explanation: Explanation, left: float, width: float) -> None:
    maps = explanation.maps
    sheet.words(shorten(explanation.run, 48), left, 0.36, size=TITLE, bold=True)
    subtitle = f"{explanation.attention} attention   ·   {shorten(explanation.picture, 44)}"
    sheet.words(subtitle, left, 0.56, color=MUTED)
    sheet.picture(pixels(explanation.image, 320), left, HEADER, LARGE)
    place = left + LARGE + GAP
    _draw_map(sheet, explanation, maps.summary[0], place, HEADER, LARGE)
    sheet.words(SUMMARIES[maps.method], place, HEADER + LARGE + 0.14, size=SMALL + 0.4)
    place += LARGE + GAP + 0.16
    _draw_classes(sheet, explanation, place, HEADER, min(left + width - place, 1.3 * BARS))
    _draw_heads(sheet, explanation, left, HEADER + HEADS_BELOW)


def _draw_map(
    sheet: Sheet, explanation: Explanation, weights: Tensor, x: float, y: float, side: float
) -> None:
    """Draw a map over the image, and the range of its weights below."""
    patches = explanation.maps.on_grid(weights)
    resolution = 320 if side > 1.2 else 160
    height = sheet.picture(overlay(explanation.image, patches, size=resolution), x, y, side)
    relative = relative_to_uniform(weights, patches)
    text = f"{_factor(relative.min())} – {_factor(relative.max())} ×"
    sheet.words(text, x + side, y + height + 0.14, size=SMALL, color=MUTED, align="right")


def _draw_classes(sheet: Sheet, explanation: Explanation, x: float, y: float, width: float) -> None:
    """Draw the most probable classes as bars: blue if correct, red if wrong, dark if unknown."""
    predicted, truth = explanation.classes[0][0], explanation.truth
    color = INK if truth is None else GOOD if predicted == truth else BAD
    sheet.words(shorten(predicted, 22), x, y + 0.16, size=TITLE, bold=True, color=color)
    verdict = (
        ""
        if truth is None
        else "correct"
        if predicted == truth
        else f"wrong: it is {shorten(truth, 24)}"
    )
    sheet.words(verdict, x, y + 0.34, size=SMALL, color=MUTED)
    for line, (name, probability) in enumerate(explanation.classes[:SHOWN_CLASSES]):
        at = y + 0.6 + 0.25 * line
        first = line == 0
        sheet.words(shorten(name, 20), x, at, size=SMALL + 0.7, color=INK if first else MUTED)
        percent = f"{100 * probability:.1f} %"
        sheet.words(percent, x + width, at, size=SMALL + 0.7, color=MUTED, align="right")
        sheet.bar(x, at + 0.05, width, 0.045, GRID)
        sheet.bar(x, at + 0.05, probability * width, 0.045, color if first else MUTED)


def _draw_heads(sheet: Sheet, explanation: Explanation, left: float, top: float) -> None:
    """Draw a row for each layer: its heads, then their mean."""
    maps, cell = explanation.maps, _cell(explanation.maps)
    step = cell + 0.08
    starts = [left + LAYER_NAME + step * column for column in range(len(maps.heads))]
    starts.append(left + LAYER_NAME + step * len(maps.heads) + 0.12)
    for start, name in zip(starts, [*(f"head {head}" for head in maps.heads), "mean"], strict=True):
        sheet.words(name, start, top - 0.07, size=SMALL + 0.4, bold=name == "mean")
    for line, layer in enumerate(maps.layers):
        y = top + line * (cell + CAPTION)
        sheet.words(f"layer {layer}", left, y + cell / 2 + 0.04, size=TEXT)
        rows = maps.weights[0, line]
        for start, weights in zip(starts, [*rows, rows.mean(dim=0)], strict=True):
            _draw_map(sheet, explanation, weights, start, y, cell)


def _factor(value: Tensor) -> str:
    return f"{float(value):.1f}" if value >= 10 else f"{float(value):.2f}"
