"""Plot lengths of intermediate results over N: measured points and predicted lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.scaling_theory import QUANTITIES, SETTINGS, predict

from saccade.bench.plots import COLORS, save_figure, tidy
from saccade.plotting import new_figure

if TYPE_CHECKING:
    from benchmarks.scaling import NormRow, ScalingFindings

__all__ = ["draw_scaling"]

LOOKS: dict[str, dict[str, Any]] = {
    "none": {"color": COLORS[1], "marker": "^"},
    "unit": {"color": COLORS[0], "marker": "o"},
    "scaled": {"color": COLORS[2], "marker": "s"},
}
LINES: tuple[Any, Any] = ("-", (0, (1, 1.5)))
"""Line styles of the smallest and the largest d."""


def draw_scaling(findings: ScalingFindings, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg."""
    if not findings.rows:
        return []
    figure = new_figure(13.5, 7.6)
    panels = figure.subplots(2, 4, sharex=True)
    for axes, name in zip(panels.flat, QUANTITIES, strict=True):
        _draw_panel(axes, name, findings)
    for axes in panels[1]:
        axes.set_xlabel("tokens N")
    for axes in panels[:, 0]:
        axes.set_ylabel("mean length")
    _add_legend(figure, findings)
    figure.suptitle(
        "How large the intermediate results of TaylorShift get: points measured, lines derived",
        fontsize=12,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return save_figure(figure, stem)


def _ends(rows: list[NormRow]) -> list[int]:
    dims = sorted({row.head_dim for row in rows})
    return list(dict.fromkeys((dims[0], dims[-1])))


def _draw_panel(axes: Any, name: str, findings: ScalingFindings) -> None:
    laws = findings.laws()
    for setting, look in LOOKS.items():
        for dim, line in zip(_ends(findings.rows), LINES, strict=False):
            own = [r for r in findings.rows if (r.setting, r.head_dim) == (setting, dim)]
            tokens = sorted(row.tokens for row in own)
            theory = [predict(name, SETTINGS[setting], n, dim) for n in tokens]
            axes.plot(tokens, theory, color=look["color"], linestyle=line, linewidth=1.3)
            axes.plot(
                [row.tokens for row in own],
                [row.norms[name] for row in own],
                linestyle="none",
                markersize=4,
                fillstyle="full" if line == "-" else "none",
                **look,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    tidy(axes)
    law = laws.get("unit", {}).get(name)
    told = "" if law is None else f"\nunit rows: $N^{{{law.tokens:.2f}}}\\ d^{{{law.dim:.2f}}}$"
    axes.set_title(name + told.replace("-0.00", "0.00"), fontsize=10)


def _add_legend(figure: Any, findings: ScalingFindings) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=f"{name}: {SETTINGS[name].words}", linewidth=1.3, **look)
        for name, look in LOOKS.items()
    ]
    handles += [
        Line2D([], [], color="#555555", linestyle=line, label=f"d = {dim}")
        for dim, line in zip(_ends(findings.rows), LINES, strict=False)
    ]
    figure.legend(handles=handles, loc="lower center", ncols=5, frameon=False, fontsize=9)
