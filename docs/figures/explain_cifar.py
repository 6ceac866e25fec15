"""The first ten test images of a run, and its map of each by every method.

    python docs/figures/explain_cifar.py runs/hybrid-110

The images are those that come first, whatever they show. Writes explain_cifar.png, in 256
colors, beside this file.
"""

import argparse
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from saccade.explain.explanation import Explainer, Explanation
from saccade.explain.figures import SUMMARIES
from saccade.explain.maps import METHODS, relative_to_uniform
from saccade.explain.sheet import SMALL, TEXT, TITLE, Sheet, overlay, pixels, save
from saccade.plotting import BAD, GOOD, MUTED
from saccade.runs import RunFolder

COUNT = 10
SIDE, GAP, CAPTION = 0.78, 0.08, 0.2
LEFT, TOP = 1.35, 1.15


def draw(columns: list[list[Explanation]]) -> Sheet:
    """A column for each image: itself, then its map by each method."""
    rows = 1 + len(METHODS)
    height = TOP + rows * (SIDE + CAPTION) + 0.35
    sheet = Sheet(LEFT + COUNT * (SIDE + GAP) + 0.22, height)
    first = columns[0][0]
    sheet.words(f"The first {COUNT} test images", 0.3, 0.36, size=TITLE, bold=True)
    sheet.words(f"{first.run}, {first.attention} attention", 0.3, 0.56, color=MUTED)
    for row, name in enumerate(["image", *(SUMMARIES[method] for method in METHODS)]):
        sheet.words(name, 0.3, _down(row) + SIDE / 2 + 0.04, size=TEXT - 0.5)
    for number, explanations in enumerate(columns):
        _draw_column(sheet, explanations, LEFT + number * (SIDE + GAP))
    note = "Colors run from the smallest to the largest weight of each map; numbers: these two, as"
    note += " multiples of the weight a token has if all have the same."
    sheet.words(note, 0.3, height - 0.2, size=SMALL, color=MUTED)
    return sheet


def _draw_column(sheet: Sheet, explanations: list[Explanation], x: float) -> None:
    first = explanations[0]
    said, probability = first.classes[0]
    color = GOOD if said == first.truth else BAD
    sheet.words(said, x, TOP - 0.21, size=SMALL + 0.7, bold=True, color=color)
    sheet.words(f"{100 * probability:.0f} %", x, TOP - 0.07, size=SMALL, color=MUTED)
    sheet.picture(pixels(first.image, 128), x, TOP, SIDE)
    for row, explanation in enumerate(explanations, start=1):
        weights = explanation.maps.summary[0]
        patches = explanation.maps.on_grid(weights)
        sheet.picture(overlay(explanation.image, patches, size=128), x, _down(row), SIDE)
        relative = relative_to_uniform(weights, patches)
        told = f"{float(relative.min()):.2f} – {float(relative.max()):.2f} ×"
        right, foot = x + SIDE, _down(row) + SIDE + 0.13
        sheet.words(told, right, foot, size=SMALL - 0.4, color=MUTED, align="right")


def _down(row: int) -> float:
    return TOP + row * (SIDE + CAPTION)


def main() -> None:
    """Explain the images and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="its folder")
    given = parser.parse_args()
    run = RunFolder.open(given.run)
    explainers = [Explainer(run, method=method) for method in METHODS]
    columns = [
        [explainer.explain(explainer.album.open(f"test:{place}")) for explainer in explainers]
        for place in range(COUNT)
    ]
    with TemporaryDirectory() as folder:
        drawn = save(partial(draw, columns), Path(folder) / "explain_cifar")[0]
        Image.open(drawn).convert("RGB").quantize(256, kmeans=1).save(
            given.out / drawn.name, optimize=True
        )


if __name__ == "__main__":
    main()
