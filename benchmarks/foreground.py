"""Attention on the shape: trained models against untrained ones, for several attentions.

    for a in softmax taylorshift performer; do
        saccade train benchmarks/foreground.yaml model.attention=$a --out runs/$a
    done
    python benchmarks/foreground.py runs/*

writes foreground_<hardware>_<yyyymm>.json, .md, .png and .svg beside this file. Each run is
measured as `saccade explain RUN --foreground` measures it.
"""

import argparse
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saccade.environment import describe_environment, hardware_slug, resolve_device
from saccade.explain.foreground import measure_foreground
from saccade.explain.maps import METHODS
from saccade.explain.sheet import SMALL, TITLE, Sheet, save
from saccade.plotting import GOOD, GRID, INK, MUTED
from saccade.runs import RunFolder

RESULTS = Path(__file__).parents[1] / "results" / "foreground"
PANELS = {"attention": "mean attention", "rollout": "rollout", "gradient": "gradient rollout"}
ROW, PANEL, LEFT, TOP = 0.3, 1.9, 1.75, 1.15


def draw(rows: list[dict[str, Any]]) -> Sheet:
    """A panel for each method, a line for each attention, from untrained to trained."""
    height = ROW * len(rows)
    width = LEFT + len(METHODS) * (PANEL + 0.2) + 0.2
    sheet = Sheet(width, TOP + height + 0.75)
    sheet.words("Where attention lies before and after training", 0.3, 0.36, size=TITLE, bold=True)
    told = f"share on the pixels of the shape, {rows[0]['images']} test images, 95 % intervals"
    sheet.words(told, 0.3, 0.58, color=MUTED)
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5) + 0.04
        sheet.words(row["attention"], 0.3, y)
    largest = max(row["methods"][m]["trained"]["high"] for row in rows for m in METHODS)
    for number, method in enumerate(METHODS):
        x = LEFT + number * (PANEL + 0.2)
        sheet.words(PANELS[method], x, TOP - 0.12, bold=True)
        axes = sheet.axes(x, TOP, PANEL, height)
        _draw_panel(axes, rows, method, largest)
    foot = TOP + height + 0.55
    sheet.words("○ untrained", 0.3, foot, size=SMALL + 0.5, color=MUTED)
    sheet.words("● trained", 1.15, foot, size=SMALL + 0.5, color=GOOD)
    sheet.words("| equal weights", 1.95, foot, size=SMALL + 0.5, color=INK)
    return sheet


def _draw_panel(axes: Any, rows: list[dict[str, Any]], method: str, largest: float) -> None:
    from matplotlib.ticker import PercentFormatter

    for line, row in enumerate(rows):
        before, after = (row["methods"][method][key] for key in ("untrained", "trained"))
        axes.plot([before["mean"], after["mean"]], [line, line], color=GRID, linewidth=3, zorder=1)
        for found, face, edge in ((before, "white", MUTED), (after, GOOD, GOOD)):
            axes.plot([found["low"], found["high"]], [line, line], color=edge, linewidth=1)
            axes.plot(found["mean"], line, "o", markersize=5, color=edge, markerfacecolor=face)
    axes.axvline(rows[0]["uniform"]["mean"], color=INK, linewidth=0.9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.08 * largest)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=SMALL + 0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.spines[["top", "left", "right"]].set_visible(False)


def table(rows: list[dict[str, Any]]) -> str:
    """The numbers as Markdown, and what they do not show."""

    def cell(found: dict[str, float]) -> str:
        return f"{100 * found['mean']:.1f} %"

    heads = [f"{PANELS[m]}, {when}" for m in METHODS for when in ("untrained", "trained")]
    lines = ["| attention | test accuracy | " + " | ".join(heads) + " |"]
    lines.append("|---" * (2 + len(heads)) + "|")
    for row in rows:
        cells = [cell(row["methods"][m][k]) for m in METHODS for k in ("untrained", "trained")]
        accuracy = f"{100 * row['test_accuracy']:.1f} %"
        lines.append(f"| `{row['attention']}` | {accuracy} | " + " | ".join(cells) + " |")
    worse = [
        f"`{row['attention']}` ({PANELS[m]})"
        for row in rows
        for m in METHODS
        if row["methods"][m]["gain"]["low"] <= 0
    ]
    said = (
        f"Not better than untrained: {', '.join(worse)}."
        if worse
        else ("Every attention lies more on the shape after training, by every method.")
    )
    even = f"Equal weights would give {cell(rows[0]['uniform'])}."
    return "\n".join([*lines, "", f"{even} {said}", ""])


def main() -> None:
    """Measure the runs and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders on shapes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the files")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    given = parser.parse_args()
    device = resolve_device(given.device)
    rows = []
    for path in given.runs:
        rows.append(measure_foreground(RunFolder.open(path), device=device.type))
        rows[-1]["run"] = path.name
        print(f"{path.name}: {rows[-1]['methods']['rollout']['trained']['mean']:.3f}", flush=True)
    rows.sort(key=lambda row: -row["methods"]["rollout"]["trained"]["mean"])
    stem = given.out / f"foreground_{hardware_slug(device)}_{datetime.now(UTC):%Y%m}"
    result = {"environment": describe_environment(torch.device(device)), "rows": rows}
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    figure = save(partial(draw, rows), stem)[0]
    heading = "# Attention on the shape\n\n`python benchmarks/foreground.py runs/*`; models of "
    heading += "`benchmarks/foreground.yaml`, one a row, seed 0.\n\n"
    stem.with_suffix(".md").write_text(
        f"{heading}{table(rows)}\n![share of attention on the shape]({figure.name})\n"
    )


if __name__ == "__main__":
    main()
