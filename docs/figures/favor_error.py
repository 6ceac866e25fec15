"""FAVOR+ against softmax: how far off its attention is, over the number of random features M.

    python docs/figures/favor_error.py

Draws q and k from a Gaussian, scaled so that the scores q.k/sqrt(D) have a given standard
deviation, and compares the rows of both maps by their total variation distance: the share of a
query's attention that lands on other keys than softmax would choose. Each point is the median over
independent projections, each band the middle half. Features and weights are taken without the eps
that keeps them positive, so that the figure shows the estimate and nothing else; the printed table
also has the rows of the library's defaults. Writes favor_error.png and favor_error.svg beside this
file. About 15 s on one core.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from saccade.ops.linear import favor_softmax, linear_weights, orthogonal_projection
from saccade.ops.softmax import softmax_weights

Errors = dict[tuple[str, float], Tensor]

TOKENS, HEAD_DIM, PROJECTIONS = 128, 32, 32
FEATURES = [2**n for n in range(3, 13)]  # 8 .. 4096
SPREADS = [0.125, 0.25, 0.5, 1.0, 2.0]
# Okabe and Ito's palette, which color-blind readers can tell apart; markers say it again.
COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"]
LOOKS = dict(zip(SPREADS, zip(COLORS, "os^Dv", strict=True), strict=True))


def draw_tokens(spread: float) -> tuple[Tensor, Tensor]:
    """q and k (1, 1, N, D) whose scores q.k/sqrt(D) have standard deviation `spread`."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, TOKENS, HEAD_DIM, generator=generator)
    return q * spread**0.5, k * spread**0.5


def gaussian_projection(num_features: int, head_dim: int, *, seed: int) -> Tensor:
    """Independent Gaussian rows, the plain alternative to orthogonal ones."""
    return torch.randn(num_features, head_dim, generator=torch.Generator().manual_seed(seed))


def wrong_share(q: Tensor, k: Tensor, exact: Tensor, projection: Tensor, eps: float) -> float:
    """Total variation distance between the rows of FAVOR+ and of softmax, averaged over rows."""
    phi_q = favor_softmax(q, projection, is_query=True, eps=eps)
    phi_k = favor_softmax(k, projection, is_query=False, eps=eps)
    return float((linear_weights(phi_q, phi_k, eps=eps) - exact).abs().sum(dim=-1).mean() / 2)


def measure() -> Errors:
    """(case, spread) -> errors (features, projections)."""
    cases = {
        "orthogonal": (orthogonal_projection, 0.0),
        "gaussian": (gaussian_projection, 0.0),
        "defaults": (orthogonal_projection, 1e-6),
    }
    tokens = {spread: draw_tokens(spread) for spread in SPREADS}
    exact = {spread: softmax_weights(*tokens[spread]) for spread in SPREADS}
    errors: Errors = {}
    for case, (project, eps) in cases.items():
        for spread in SPREADS:
            errors[case, spread] = torch.empty(len(FEATURES), PROJECTIONS)
        for m, num_features in enumerate(FEATURES):
            for seed in range(PROJECTIONS):
                projection = project(num_features, HEAD_DIM, seed=seed)
                for spread in SPREADS:
                    error = wrong_share(*tokens[spread], exact[spread], projection, eps)
                    errors[case, spread][m, seed] = error
    return errors


def report(errors: Errors) -> None:
    """Print the medians, and the slope of each line over its last five points."""
    print(f"wrong share of attention, median of {PROJECTIONS} projections; N={TOKENS} D={HEAD_DIM}")
    print(f"{'case':11} {'spread':>6}", *(f"{m:>7}" for m in FEATURES), f"{'slope':>7}")
    for (case, spread), values in errors.items():
        medians = values.median(dim=1).values
        slope = float((medians[-1] / medians[-5]).log2() / 4)
        print(f"{case:11} {spread:6}", *(f"{x:7.4f}" for x in medians), f"{slope:7.2f}")


def band(axes: plt.Axes, values: Tensor, spread: float, label: str) -> None:
    """A line of medians with the middle half of the values around it."""
    color, marker = LOOKS[spread]
    low, middle, high = (values.quantile(q, dim=1).tolist() for q in (0.25, 0.5, 0.75))
    axes.fill_between(FEATURES, low, high, color=color, alpha=0.25, linewidth=0)
    axes.plot(FEATURES, middle, color=color, marker=marker, markersize=4.5, label=label)


def draw(errors: Errors) -> plt.Figure:
    """The error over M, and what orthogonal rows gain."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for spread in reversed(SPREADS):
        band(left, errors["orthogonal", spread], spread, f"{spread:g}")
    start = float(errors["orthogonal", SPREADS[0]][0].median()) * 0.6
    guide = [start * (FEATURES[0] / m) ** 0.5 for m in FEATURES]
    left.plot(FEATURES, guide, color="black", linestyle="--", linewidth=1)
    left.annotate(
        r"$1/\sqrt{M}$", (FEATURES[4], guide[4]), xytext=(-4, -6), textcoords="offset points",
        ha="right", va="top",
    )  # fmt: skip
    left.set_yscale("log")
    left.set_yticks([0.01, 0.03, 0.1, 0.3, 1], ["1 %", "3 %", "10 %", "30 %", "100 %"])
    left.tick_params(axis="y", which="minor", left=False)
    left.set_ylabel("share of attention on the wrong keys")
    left.set_title("FAVOR+ approaches softmax as M grows", fontsize=11)
    left.legend(
        title=r"std of $q\cdot k/\sqrt{D}$",
        fontsize=9,
        title_fontsize=9,
        frameon=False,
        loc="lower left",
    )

    for spread in SPREADS[::2]:
        plain, orthogonal = errors["gaussian", spread], errors["orthogonal", spread]
        band(right, plain / orthogonal.median(dim=1, keepdim=True).values, spread, f"{spread:g}")
    right.axhline(1, color="black", linestyle="--", linewidth=1)
    right.set_ylabel("error with Gaussian rows / with orthogonal rows")
    right.legend(title=r"std of $q\cdot k/\sqrt{D}$", fontsize=9, title_fontsize=9, frameon=False)
    right.set_title("Orthogonal rows help where scores are small", fontsize=11)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(FEATURES, [str(m) for m in FEATURES])
        axes.set_xlabel("number of random features M")
        axes.grid(alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Measure, print, draw."""
    torch.set_num_threads(1)
    errors = measure()
    report(errors)
    plt.rcParams["svg.hashsalt"] = "saccade"  # the same file from the same numbers
    figure = draw(errors)
    target = Path(__file__).with_suffix(".png")
    figure.savefig(target, dpi=150, metadata={"Software": None})
    figure.savefig(target.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
