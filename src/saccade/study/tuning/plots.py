"""How a search went, and what mattered: two figures, each as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["draw_plots"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; each state has its own marker.
BLUE, ORANGE, GREY, BLACK = "#0072B2", "#E69F00", "#7F7F7F", "#000000"
LOOKS = {
    "complete": {"color": BLUE, "marker": "o", "s": 36},
    "pruned": {"color": ORANGE, "marker": "v", "s": 36},
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
    """Every trial's value in the order of their numbers, and the best so far."""
    figure, axes = _figure(7, 4)
    for state, look in LOOKS.items():
        rows = [r for r in results["trials"] if r["state"] == state and r["value"] is not None]
        if rows:
            points = [r["number"] for r in rows], [r["value"] for r in rows]
            axes.scatter(*points, label=state, zorder=3, **look)
    better = max if results["direction"] == "maximize" else min
    steps: list[tuple[int, float]] = []
    for row in results["trials"]:
        if row["state"] == "complete":
            best = row["value"] if not steps else better(steps[-1][1], row["value"])
            steps.append((row["number"], best))
    last = results["trials"][-1]["number"]
    axes.step(
        [number for number, _ in steps] + [last],
        [best for _, best in steps] + [steps[-1][1]],
        where="post",
        color=BLACK,
        linewidth=1.4,
        label="best so far",
    )
    failed = [row["number"] for row in results["trials"] if row["state"] == "failed"]
    if failed:
        axes.scatter(
            failed,
            [0.02] * len(failed),
            transform=axes.get_xaxis_transform(),
            color=GREY,
            marker="x",
            label="failed",
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="trial", ylabel=NAMES[results["metric"]])
    best = results["best"]
    axes.set_title(
        f"{Path(results['recipe']).stem}: best {best['value']:.4f} in trial {best['number']}"
    )
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
    axes.set_title(f"what mattered for {NAMES[results['metric']]}, by {done} complete trials")
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
