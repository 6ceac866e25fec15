"""Plots of a search: optimization history and parameter importance, as PNG and SVG."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from saccade.io import write_file
from saccade.plotting import draw_with_fonts

__all__ = ["draw_plots"]

# Colors by Okabe and Ito, safe for color-blind readers. Each state also has its own marker.
BLUE, ORANGE, GRAY, BLACK = "#0072B2", "#E69F00", "#7F7F7F", "#000000"
ENDED_EARLY = {
    "pruned": {"color": ORANGE, "marker": "v", "label": "pruned"},
    "failed": {"color": GRAY, "marker": "x", "label": "failed"},
}
NAMES = {"val_accuracy": "validation accuracy", "val_loss": "validation loss"}


def draw_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the plots for which there are results; return the files."""
    folder.mkdir(exist_ok=True)
    paths: list[Path] = []
    if results["best"] is not None:
        paths += _save(lambda: _history(results), folder / "history")
    if results["importance"]:
        paths += _save(lambda: _importance(results), folder / "importance")
    return paths


def _history(results: dict[str, Any]) -> Any:
    """Plot the values of complete trials and the best value so far.

    Pruned and failed trials are marked on the x axis. The last value of a pruned trial is not
    plotted, because it is from an earlier epoch than the other values.
    """
    figure, axes = _figure(7, 4)
    done = [
        (row["number"], row["value"]) for row in results["trials"] if row["state"] == "complete"
    ]
    numbers, values = zip(*done, strict=True)
    axes.scatter(numbers, values, color=BLUE, label="complete", zorder=3)
    best = list(itertools.accumulate(values, max if results["direction"] == "maximize" else min))
    last = results["trials"][-1]["number"]
    ends = [*numbers, last], [*best, best[-1]]
    axes.step(*ends, where="post", color=BLACK, linewidth=1.4, label="best so far")
    for state, style in ENDED_EARLY.items():
        early = [row["number"] for row in results["trials"] if row["state"] == state]
        if early:
            level = [0.03] * len(early)
            axes.scatter(early, level, transform=axes.get_xaxis_transform(), **style)
    axes.margins(y=0.15)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="trial", ylabel=NAMES[results["metric"]])
    winner = results["best"]
    name = Path(results["recipe"]).stem
    figure.suptitle(f"{name}: best {winner['value']:.4f} in trial {winner['number']}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)
    return figure


def _importance(results: dict[str, Any]) -> Any:
    """Bar chart of the importance of each key, the largest on top."""
    shares = sorted(results["importance"].items(), key=lambda item: item[1])
    figure, axes = _figure(7, 1.4 + 0.4 * len(shares))
    bars = axes.barh([key for key, _ in shares], [share for _, share in shares], color=BLUE)
    axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.set_xlim(0, 1.12 * max(share for _, share in shares))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=False, axis="y")
    done = sum(row["state"] == "complete" for row in results["trials"])
    axes.set_xlabel("share of importance (PED-ANOVA)")
    figure.suptitle(
        f"parameter importance for {NAMES[results['metric']]}, from {done} complete trials"
    )
    return figure


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(make: Callable[[], Any], stem: Path) -> list[Path]:
    import matplotlib

    def in_fonts(families: list[str]) -> list[Path]:
        with matplotlib.rc_context({"font.family": families}):
            figure = make()
            paths = [stem.with_suffix(f".{kind}") for kind in ("png", "svg")]
            for path in paths:
                kind = path.suffix[1:]
                metadata = {"Date": None} if kind == "svg" else None
                write_file(path, partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
            return paths

    return draw_with_fonts(in_fonts)
