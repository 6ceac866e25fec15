"""How a search went, and what mattered: two figures, each as PNG and SVG."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

__all__ = ["draw_plots"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; each state has its own marker.
BLUE, ORANGE, GREY, BLACK = "#0072B2", "#E69F00", "#7F7F7F", "#000000"
ENDED_EARLY = {
    "pruned": {"color": ORANGE, "marker": "v", "label": "pruned"},
    "failed": {"color": GREY, "marker": "x", "label": "failed"},
}
NAMES = {"val_accuracy": "validation accuracy", "val_loss": "validation loss"}


def draw_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write what there is to draw of a search's results; return the files."""
    folder.mkdir(exist_ok=True)
    paths: list[Path] = []
    if results["best"] is not None:
        paths += _save(_history(results), folder / "history")
    if results["importance"]:
        paths += _save(_importance(results), folder / "importance")
    return paths


def _history(results: dict[str, Any]) -> Any:
    """Every complete trial's value and the best so far; those that ended early on the axis.

    A pruned trial's last value is of another epoch than the others', so it is not drawn as one.
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
    for state, look in ENDED_EARLY.items():
        early = [row["number"] for row in results["trials"] if row["state"] == state]
        if early:
            level = [0.03] * len(early)
            axes.scatter(early, level, transform=axes.get_xaxis_transform(), **look)
    axes.margins(y=0.15)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="trial", ylabel=NAMES[results["metric"]])
    winner = results["best"]
    name = Path(results["recipe"]).stem
    figure.suptitle(f"{name}: best {winner['value']:.4f} in trial {winner['number']}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)
    return figure


def _importance(results: dict[str, Any]) -> Any:
    """Each key's share, the largest on top."""
    shares = sorted(results["importance"].items(), key=lambda item: item[1])
    figure, axes = _figure(7, 1.4 + 0.4 * len(shares))
    bars = axes.barh([key for key, _ in shares], [share for _, share in shares], color=BLUE)
    axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.set_xlim(0, 1.12 * max(share for _, share in shares))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=False, axis="y")
    done = sum(row["state"] == "complete" for row in results["trials"])
    axes.set_xlabel("share of importance (PED-ANOVA)")
    figure.suptitle(f"what mattered for {NAMES[results['metric']]}, by {done} complete trials")
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


def _save(figure: Any, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(f".{kind}") for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
