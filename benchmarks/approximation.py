"""The distance of each attention from softmax.

    python -m benchmarks.approximation --out results/approximation

q and k are Gaussian, scaled so that the scores q.k / sqrt(D) have a given standard deviation, the
*score magnitude*. The weights of each attention are compared with softmax of the same scores by the
total variation distance, sum |w - softmax| / 2. It is the fraction of a query's attention that is
on other keys than with softmax, between 0 and 1.

TaylorShift divides q and k by their lengths. Its temperature, a learned parameter, is set so that
its scores are as large as those of softmax. Feature maps that do not approximate an exponential
(such as `performer_relu`) are measured untrained. Attentions whose mixtures of keys are learned, or
whose output depends on all queries, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from pathlib import Path
from typing import Any, ClassVar

import torch
from benchmarks.analysis import main
from torch import Tensor

from saccade.bench.crossings import all_crossings
from saccade.bench.findings import Findings, Report
from saccade.bench.tables import Table, number
from saccade.layers import ATTENTIONS, AttentionCore, create_core, list_attentions
from saccade.ops.softmax import softmax_weights

__all__ = ["ApproximationFindings", "Case", "ErrorRow", "make_cases", "run_approximation"]

SPREADS = tuple(2 ** (i / 2) for i in range(-8, 7))  # 1/16 .. 8
TOKENS = (64, 256, 1024, 4096)
DIMS = (8, 16, 32, 64, 128)
FEATURES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FEATURE_SPREADS = (0.25, 0.5, 1.0, 2.0)

DRAWS = 8
MAX_QUERIES = 256
UNIFORM = "uniform"
"""Equal weights for all keys, for comparison."""

LIMITS = (0.01, 0.05, 0.1, 0.2)
"""Distances for which the score magnitude is reported."""


@dataclass(frozen=True)
class Case:
    """One attention on one kind of input.

    Attributes:
        sweep: Name of the varied attribute: `spread`, `tokens`, `head_dim` or `features`.
        attention: A name from `list_attentions()`, or `uniform`.
        spread: Standard deviation of the scores.
        tokens: N.
        head_dim: D.
        features: Number of random features M; None for the default of the attention.
    """

    sweep: str
    attention: str
    spread: float = 1.0
    tokens: int = 256
    head_dim: int = 32
    features: int | None = None


@dataclass(frozen=True)
class ErrorRow:
    """The distance of a case from softmax.

    Attributes:
        case: The case.
        misplaced: Total variation distance from softmax, median over independent draws.
        p20: 20th percentile over the draws.
        p80: 80th percentile over the draws.
        output_error: |o - o_softmax| / |o_softmax| for Gaussian values, median.
    """

    case: Case
    misplaced: float
    p20: float
    p80: float
    output_error: float


def make_cases() -> list[Case]:
    """All cases of the sweeps over score magnitude, N, D, and random features."""
    # A case draws a few queries and compares their weights over all keys, without any training.
    swapped = [name for name in list_attentions() if name != "softmax" and _is_swappable(name)]
    names = [*swapped, UNIFORM]
    return [
        *(Case("spread", name, spread=spread) for name in names for spread in SPREADS),
        *(Case("tokens", name, tokens=tokens) for name in names for tokens in TOKENS),
        *(Case("head_dim", name, head_dim=dim) for name in names for dim in DIMS),
        *(
            Case("features", name, spread=spread, features=count)
            for name in names
            if "num_features" in _options(name)
            for spread in FEATURE_SPREADS
            for count in FEATURES
        ),
    ]


def _is_swappable(name: str) -> bool:
    """False if an attention needs training, or all queries, before it can be compared."""
    return not ATTENTIONS[name].self_only and ATTENTIONS[name].untrained is None


def _options(name: str) -> tuple[str, ...]:
    return ATTENTIONS[name].options if name in ATTENTIONS else ()


@dataclass
class ApproximationFindings(Findings):
    """Distances from softmax."""

    theme: ClassVar[str] = "approximation"
    title: ClassVar[str] = "Distance from softmax"
    preface: ClassVar[str] = (
        "Misplaced attention: the fraction of a query's attention that is on other keys than with "
        "softmax (total variation distance), median over "
        f"{DRAWS} independent draws of Gaussian q and k. The score magnitude is the standard "
        "deviation of q.k / sqrt(D). By default it is 1, N = 256, D = 32, and the number of "
        "random features is D ln D. `uniform` gives every key the same weight. "
        "TaylorShift's temperature is set so that its scores are as large as softmax's; feature "
        "maps are untrained."
    )

    rows: list[ErrorRow] = field(default_factory=list)

    def curve(self, sweep: str, attention: str, **fixed: float) -> dict[float, ErrorRow]:
        """The rows of one attention in a sweep, by the value of the varied attribute."""
        found = {}
        for row in self.rows:
            same = all(getattr(row.case, name) == value for name, value in fixed.items())
            if (row.case.sweep, row.case.attention) == (sweep, attention) and same:
                found[getattr(row.case, sweep)] = row
        return found

    def departures(self, attention: str) -> dict[float, float | None]:
        """For each limit, the score magnitude from which more attention is misplaced.

        0 if the limit is exceeded at every measured magnitude, None if it never is.
        """
        curve = {x: row.misplaced for x, row in self.curve("spread", attention).items()}
        return {limit: _reaches(curve, limit) for limit in LIMITS}

    def attentions(self) -> list[str]:
        """The attentions that were measured."""
        return list(dict.fromkeys(row.case.attention for row in self.rows))

    def conclusions(self) -> dict[str, Any]:
        """The score magnitudes from which each attention differs from softmax."""
        return {
            "departures": {
                name: {str(limit): found for limit, found in self.departures(name).items()}
                for name in self.attentions()
            }
        }

    def tables(self) -> list[Table]:
        """The score magnitudes of the limits, and one table for each sweep."""
        columns = ("attention", *(f"{limit:.0%} misplaced from" for limit in LIMITS))
        lines = [
            [name, *(_magnitude_text(spread) for spread in self.departures(name).values())]
            for name in self.attentions()
        ]
        departures = Table("Score magnitude from which attention is misplaced", columns, lines)
        return [*([departures] if lines else []), *self._sweeps()]

    def _sweeps(self) -> Iterator[Table]:
        names = {"spread": "score magnitude", "tokens": "N", "head_dim": "D"}
        for sweep, title in names.items():
            yield from self._table(sweep, f"Misplaced attention over {title}", title)
        for spread in FEATURE_SPREADS:
            title = f"Misplaced attention over random features M, score magnitude {spread:g}"
            yield from self._table("features", title, "M", spread=spread)

    def _table(self, sweep: str, title: str, unit: str, **fixed: float) -> Iterator[Table]:
        curves = {name: self.curve(sweep, name, **fixed) for name in self.attentions()}
        xs = sorted({x for curve in curves.values() for x in curve})
        lines = [
            [name, *(f"{curve[x].misplaced:.1%}" if x in curve else "" for x in xs)]
            for name, curve in curves.items()
            if curve
        ]
        if lines:
            yield Table(title, (unit, *(f"{x:.3g}" if x < 100 else f"{x:g}" for x in xs)), lines)

    def draw(self, stem: Path) -> list[Path]:
        """Draw four panels: the functions, score magnitude, random features, N and D."""
        from benchmarks.approximation_plot import draw_approximation

        return draw_approximation(self, stem)


def _magnitude_text(spread: float | None) -> str:
    if spread is None:
        return "-"
    return number(spread) if spread > 0 else f"<= {number(min(SPREADS))}"


def _reaches(curve: Mapping[float, float], limit: float) -> float | None:
    """The first crossing of a limit, interpolated linearly on log axes.

    0 if the first point is above the limit, None if the curve stays below.
    """
    leads = {x: log(max(y, 1e-12) / limit) for x, y in curve.items()}
    if leads and leads[min(leads)] > 0:
        return 0.0
    found = all_crossings(leads)
    return found[0] if found else None


@torch.no_grad()
def run_approximation(
    findings: ApproximationFindings,
    device: torch.device,
    cases: Sequence[Case] | None = None,
    *,
    report: Report = lambda message, share: None,
) -> None:
    """Measure the cases and append them to the findings."""
    cases = make_cases() if cases is None else cases
    for done, case in enumerate(cases, 1):
        findings.rows.append(measure_case(case, device))
        report(f"{case.attention} over {case.sweep.replace('_', ' ')}", done / len(cases))
    findings.complete = True


def measure_case(case: Case, device: torch.device) -> ErrorRow:
    """Compare an attention with softmax over several draws of q, k, v and random features."""
    pairs = [_errors(case, draw, device) for draw in range(DRAWS)]
    misplaced, outputs = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    p20, median, p80 = (float(misplaced.quantile(p)) for p in (0.2, 0.5, 0.8))
    return ErrorRow(case, median, p20, p80, float(outputs.median()))


def _errors(case: Case, draw: int, device: torch.device) -> tuple[float, float]:
    size = (1, 1, case.tokens, case.head_dim)
    generator = torch.Generator(device).manual_seed(draw)
    q, k, v = (torch.randn(size, generator=generator, device=device) for _ in range(3))
    q, k = q * sqrt(case.spread), k * sqrt(case.spread)
    q = q[:, :, :MAX_QUERIES]
    exact = softmax_weights(q, k)
    difference = _weights(case, draw, q, k) - exact
    misplaced = float(difference.abs().sum(dim=-1).mean() / 2)
    return misplaced, float((difference @ v).norm() / (exact @ v).norm())


def _weights(case: Case, draw: int, q: Tensor, k: Tensor) -> Tensor:
    """The attention weights, (1, 1, Q, N)."""
    if case.attention == UNIFORM:
        return q.new_full((1, 1, q.shape[2], case.tokens), 1 / case.tokens)
    return _core(case, draw, q.device).attention_weights(q, k)


def _core(case: Case, draw: int, device: torch.device) -> AttentionCore:
    available, options = _options(case.attention), dict[str, object]()
    if "feature_seed" in available:
        options["feature_seed"] = draw
    if case.features is not None:
        options["num_features"] = case.features
    core = create_core(case.attention, 1, case.head_dim, options=options).to(device)
    for name, parameter in core.requires_grad_(False).named_parameters():
        if name == "temperature":
            parameter.fill_(case.spread * sqrt(case.head_dim))
    return core


if __name__ == "__main__":
    main(ApproximationFindings, run_approximation, __doc__)
