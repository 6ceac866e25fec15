"""The page of a conversion: accuracies, verdicts by layer, a heat map, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saccade.io import write_file
from saccade.report.page import (
    Cell,
    Column,
    Figure,
    Figures,
    Items,
    Page,
    Section,
    Table,
    text_column,
)
from saccade.report.render import as_html
from saccade.report.style import PAGE_COLORS, Drawing, Margins, axes_style, draw, series_of

__all__ = ["PAGE", "compose", "write_page"]

PAGE = "conversion.html"
Record = Mapping[str, Any]


def write_page(folder: Path, record: Record) -> Path:
    """Write `conversion.html` into a run folder and return its path."""
    path = folder / PAGE
    write_file(path, as_html(compose(record)))
    return path


def compose(record: Record) -> Page:
    """The page about a conversion; `record` holds the results too."""
    return Page(
        title=f"Softmax to {record['attention']}",
        headline=_headline(record),
        facts=_facts(record),
        sections=[_accuracy(record), _layers(record), _speed(record)],
        series={},
        has_figure_files=False,
        command="saccade convert",
    )


def _headline(record: Record) -> str:
    change = record["recovered_difference"]
    return (
        f"{record['source']} has {_percent(record['teacher_accuracy'])} with softmax, "
        f"{_percent(record['zero_shot_accuracy'])} with {record['attention']} in its place, and "
        f"{_percent(record['recovered_accuracy'])} after {record['seconds']:.0f} s of distillation "
        f"({_points(change)} against softmax)."
    )


def _facts(record: Record) -> list[tuple[str, str]]:
    kept = ", ".join(map(str, record["softmax_blocks"])) or "none"
    options = ", ".join(f"{key}={value}" for key, value in record["attention_options"].items())
    side = record.get("local_conv", record.get("value_conv"))
    return [
        ("attention", record["attention"] + (f" ({options})" if options else "")),
        ("layers that keep softmax", kept),
        ("convolution of values", f"{side} x {side}" if side else "none"),
        ("data", f"{record['data']}, {record['test_count']:,} test images"),
        ("device", str(record["device"])),
    ]


def _accuracy(record: Record) -> Section:
    rows = [
        ("softmax, the source", record["teacher_accuracy"], None, None),
        (
            "zero-shot, swapped without training",
            record["zero_shot_accuracy"],
            record["zero_shot_difference"],
            0.0,
        ),
        (
            "recovered by distillation",
            record["recovered_accuracy"],
            record["recovered_difference"],
            record["seconds"],
        ),
    ]
    if "scratch_accuracy" in record:
        name = f"from scratch, {record['epochs']} epochs"
        rows.append((name, record["scratch_accuracy"], None, record["scratch_seconds"]))
    table = Table(
        "accuracy",
        "Accuracy on the test set",
        [
            text_column("model", "model"),
            Column("accuracy", "accuracy"),
            Column("difference", "difference to softmax, 95 % interval"),
            Column("seconds", "seconds of training"),
        ],
        [
            [
                Cell(name, strong=name.startswith("recovered")),
                Cell(_percent(accuracy), accuracy),
                Cell(_points(change), change["value"]) if change else Cell("–"),
                Cell("–") if seconds is None else Cell(f"{seconds:,.1f}", seconds),
            ]
            for name, accuracy, change, seconds in rows
        ],
        note="Intervals are over test images, for this one training run.",
    )
    return Section("summary", "Accuracy", [table])


def _layers(record: Record) -> Section:
    layers, name = record["diagnosis"]["layers"], record["attention"]
    numbers = ("low", "high", "spread", "below", "key_shift", "distance", "plain_distance")
    titles = (
        "lowest score",
        "highest score",
        "spread in a row",
        "share below -1",
        "key shift",
        f"distance of {name}",
        "without centered keys",
    )
    rows = []
    for layer in layers:
        means = [_summary(key, layer[key]) for key in numbers]
        kept = layer["index"] in record["softmax_blocks"]
        rows.append(
            [
                Cell(f"block {layer['index']}", layer["index"]),
                *(Cell(_number(value), value) for value in means),
                Cell(_percent(layer["output_error"], 0), layer["output_error"]),
                Cell("keeps softmax" if kept else layer["verdict"]),
            ]
        )
    table = Table(
        "layers",
        "Layers before training",
        [
            text_column("block", "layer"),
            *(Column(key, title) for key, title in zip(numbers, titles, strict=True)),
            Column("output_error", "output error"),
            text_column("verdict", "verdict"),
        ],
        rows,
        note=(
            f"Measured on {record['diagnosis']['images']} training images; extremes or means over "
            "heads. Distance: total variation between rows of the maps, 0 to 1. Output error: "
            "change of the block's branch if its attention is replaced. Below -1 the polynomial "
            "1 + s + s^2/2 rises again."
        ),
    )
    figure = Figure(
        "distances",
        f"Distance of {name} to softmax",
        "Total variation between the maps, by layer and head; darker is farther from softmax.",
        _heat_map([layer["distance"] for layer in layers]),
    )
    verdicts = Items([f"Block {layer['index']}: {layer['verdict']}." for layer in layers])
    return Section("layers", "Layers before training", [verdicts, table, Figures([figure])])


def _summary(key: str, heads: Sequence[float]) -> float:
    extremes = {"low": min, "high": max}
    return float(extremes[key](heads)) if key in extremes else sum(heads) / len(heads)


def _heat_map(rows: Sequence[Sequence[float]]) -> Drawing:
    """A square for each layer (row) and head (column) with the number in it."""
    values = np.asarray(rows, dtype=float)
    depth, heads = values.shape
    color, top = PAGE_COLORS["bad"].light, max(float(values.max()), 1e-9)

    def paint(axes: Any) -> None:
        from matplotlib.patches import Rectangle

        axes.set_xlim(-0.5, heads - 0.5)
        axes.set_ylim(depth - 0.5, -0.5)
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.tick_params(length=0)
        axes.set_xticks(range(heads))
        axes.set_yticks(range(depth))
        for (row, column), value in np.ndenumerate(values):
            corner = (column - 0.47, row - 0.47)
            opacity = 0.75 * max(0.0, float(value)) / top
            axes.add_patch(Rectangle(corner, 0.94, 0.94, color=color, alpha=opacity, lw=0))
            if heads <= 16:
                text = f"{value:.2f}".lstrip("0")
                axes.text(column, row, text, ha="center", va="center", fontsize=7)

    width, height = 0.7 + 0.36 * max(heads, 4), 0.6 + 0.28 * max(depth, 3)
    return draw(paint, width=width, height=height, margins=Margins(left=0.5, bottom=0.42))


def _speed(record: Record) -> Section:
    speeds = record["speed"]
    table = Table(
        "speed",
        "Milliseconds of one block",
        [
            Column("tokens", "tokens"),
            Column("softmax_ms", "softmax, ms"),
            Column("attention_ms", f"{record['attention']}, ms"),
            Column("ratio", "times as fast"),
        ],
        [
            [
                Cell(f"{row['tokens']:,}", row["tokens"]),
                *(Cell(f"{row[key]:,.2f}", row[key]) for key in ("softmax_ms", "attention_ms")),
                Cell(_number(ratio := row["softmax_ms"] / row["attention_ms"]), ratio),
            ]
            for row in speeds
        ],
        note=f"Attention and MLP, inference, one image, on {record['device']}.",
    )
    names = ["softmax", record["attention"]]
    series = series_of(names)

    def paint(axes: Any) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator

        for name, key in zip(names, ("softmax_ms", "attention_ms"), strict=True):
            look = series[name]
            axes.plot(
                [row["tokens"] for row in speeds],
                [row[key] for row in speeds],
                color=look.color,
                marker=look.marker,
                linestyle=look.dash,
            )
        axes_style(axes, x="tokens", y="ms")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.minorticks_off()
        axes.set_xticks([row["tokens"] for row in speeds], [f"{r['tokens']:,}" for r in speeds])

    figure = Figure(
        "speed",
        "Time of one block",
        "Milliseconds by number of tokens, both axes logarithmic.",
        draw(paint, legend=series, margins=Margins(right=0.3)),
    )
    return Section("speed", "Speed", [table, Figures([figure])])


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _points(change: Mapping[str, float]) -> str:
    value, low, high = (100 * change[key] for key in ("value", "low", "high"))
    return f"{value:+.2f} points, {low:+.2f} to {high:+.2f}".replace("-", "\u2212")


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "\u2212")
