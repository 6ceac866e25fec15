"""The size of TaylorShift's intermediate results over N and d.

    python -m benchmarks.scaling --out results/scaling

The published analysis (arXiv:2403.02920) draws q, k, v from a Gaussian and puts a 1 in front of
every v, so that one product gives numerator and denominator. It measures the mean Euclidean length
of each intermediate result. This module does the same for three ways of preparing q, k and v, and
compares the lengths with predictions from the moments (derived in `docs/analyze.md`).

Cost: N d^2 (d+1) products for the state, in chunks of tokens; at most 1024 queries are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from benchmarks.analysis import main
from benchmarks.power_laws import PowerLaw, fit_power_law
from benchmarks.scaling_theory import (
    PUBLISHED_WEIGHTS,
    QUANTITIES,
    SETTINGS,
    TAYLOR_WEIGHTS,
    Setting,
    predict,
)
from torch import Tensor

from saccade.bench.findings import Findings, Report
from saccade.bench.tables import Table
from saccade.errors import ConfigError
from saccade.ops.taylor.chunks import chunk_slices

__all__ = ["DIMS", "TOKENS", "NormRow", "ScalingFindings", "measure_norms", "run_scaling"]

TOKENS = tuple(2**i for i in range(2, 18))  # 4 .. 131072
DIMS = (8, 16, 32, 64)
MIN_SAMPLES, MAX_SAMPLES = 4, 64
MAX_PRODUCTS = 1 << 35
"""Limit of N d^3 times the number of samples of a shape; at least `MIN_SAMPLES` are drawn."""
MAX_QUERIES = 1024
MAX_ENTRIES = 1 << 23
CHUNK = 2048

ASYMPTOTIC = 16
"""Power laws are fitted to N >= 16 d^2, where lower-order terms are at most a few percent."""

TOLERANCE = 0.1
MIN_POWER = 0.5
"""Allowed error of an exponent: 10 % of it, or 10 % of 1/2 if the expected exponent is 0."""


@dataclass(frozen=True)
class NormRow:
    """Mean lengths of all intermediate results for one setting, one N and one d.

    Attributes:
        setting: A key of `SETTINGS`.
        tokens: N.
        head_dim: d.
        samples: Number of draws of all tokens that the mean is taken over.
        norms: Mean length of each quantity.
        expected: Length of each quantity predicted from the moments.
        published_denominator: Mean denominator with the weights of the published script.
    """

    setting: str
    tokens: int
    head_dim: int
    samples: int
    norms: dict[str, float]
    expected: dict[str, float]
    published_denominator: float


def measure_norms(setting: Setting, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Lengths of each quantity for Gaussian q, k, v (B, N, d), prepared according to `setting`.

    `published` is the denominator with the weights of the published script.
    """
    q, k = (setting.prepare(x) for x in (q, k))
    values = F.pad(v, (1, 0), value=1.0) * setting.value_factor(v.shape[1])  # (B, N, 1 + d)
    queries = q[:, :MAX_QUERIES]
    state = k.new_zeros(len(k), k.shape[-1] ** 2, values.shape[-1])  # (B, d^2, 1 + d)
    for part in chunk_slices(k.shape[1], CHUNK):
        state += _box(k[:, part]).mT @ values[:, part]
    box = _box(queries)
    square, linear = box @ state, queries @ (k.mT @ values)  # (B, Q, 1 + d)
    constant = values.sum(dim=1, keepdim=True)
    terms = (square, linear, constant)
    taylor = _mix(terms, TAYLOR_WEIGHTS, setting.alpha(q.shape[-1]))
    return {
        "q⊠q": box.norm(dim=-1),
        "k⊠k": _box(k[:, :MAX_QUERIES]).norm(dim=-1),
        "(k⊠k)ᵀv": state.flatten(1).norm(dim=-1),
        "(qkᵀ)²v": square.norm(dim=-1),
        "qkᵀv": linear.norm(dim=-1),
        "Σv": constant.norm(dim=-1),
        "denominator": taylor[..., 0].abs(),
        "output": (taylor[..., 1:] / taylor[..., :1]).norm(dim=-1),
        "published": _mix(terms, PUBLISHED_WEIGHTS)[..., 0].abs(),
    }


def _box(x: Tensor) -> Tensor:
    """All products of two coordinates: (..., d) -> (..., d^2)."""
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def _mix(
    terms: tuple[Tensor, Tensor, Tensor], weights: tuple[float, float, float], alpha: float = 1.0
) -> Tensor:
    """a (qk)^2 v + b alpha^2 (qk) v + c alpha^4 sum v; alpha compensates for the scaling of s."""
    (square, linear, constant), (a, b, c) = terms, weights
    return a * square + b * alpha**2 * linear + c * alpha**4 * constant


@dataclass
class ScalingFindings(Findings):
    """Mean lengths over N and d, and the fitted power laws."""

    theme: ClassVar[str] = "scaling"
    title: ClassVar[str] = "How large intermediate results get"
    preface: ClassVar[str] = (
        "Mean Euclidean length of the intermediate results of TaylorShift for Gaussian q, k, v, "
        "a 1 in front of every v as in the published analysis. `none`: q, k, v as drawn. `unit`: "
        "rows of q and k divided by their length. `scaled`: unit rows times d^(1/4), v / N, as "
        "published against overflow. Exponents are least-squares fits of C N^p d^r where "
        f"N >= {ASYMPTOTIC} d^2, with standard errors."
    )

    rows: list[NormRow] = field(default_factory=list)

    def laws(self) -> dict[str, dict[str, PowerLaw]]:
        """The fitted law of each setting and quantity with enough points."""
        return {name: found for name in SETTINGS if (found := self._laws_of(name))}

    def _laws_of(self, setting: str) -> dict[str, PowerLaw]:
        rows = [r for r in self.rows if r.setting == setting]
        rows = [r for r in rows if r.tokens >= ASYMPTOTIC * r.head_dim**2]
        laws = {}
        for name in QUANTITIES:
            try:
                laws[name] = fit_power_law([(r.tokens, r.head_dim, r.norms[name]) for r in rows])
            except ConfigError:
                continue
        return laws

    def verdicts(self) -> dict[str, dict[str, bool]]:
        """For each setting and quantity: True if both exponents are close to the derived ones."""
        return {
            setting: {name: is_close(law, setting, name) for name, law in laws.items()}
            for setting, laws in self.laws().items()
        }

    def conclusions(self) -> dict[str, Any]:
        """The fits, the derived exponents, and whether they agree."""
        verdicts = self.verdicts()
        return {
            "laws": [
                {
                    "setting": setting,
                    "quantity": name,
                    **asdict(law),
                    "expected_tokens": QUANTITIES[name].exponents[setting][0],
                    "expected_dim": QUANTITIES[name].exponents[setting][1],
                    "within_tolerance": verdicts[setting][name],
                }
                for setting, laws in self.laws().items()
                for name, law in laws.items()
            ]
        }

    def tables(self) -> list[Table]:
        """Fitted and derived exponents, and the two denominators."""
        return [*self._law_tables(), *self._denominator_tables()]

    def _law_tables(self) -> Iterator[Table]:
        verdicts = self.verdicts()
        for setting, laws in self.laws().items():
            lines = []
            for name, law in laws.items():
                tokens, dim = QUANTITIES[name].exponents[setting]
                lines.append(
                    [
                        name,
                        f"{law.tokens:+.3f} ± {law.tokens_error:.3f}",
                        f"{tokens:+g}",
                        f"{law.dim:+.3f} ± {law.dim_error:.3f}",
                        f"{dim:+g}",
                        "yes" if verdicts[setting][name] else "no",
                    ]
                )
            columns = ("length of", "power of N", "analysis", "power of d", "analysis")
            yield Table(f"{setting}: {SETTINGS[setting].words}", (*columns, "within 10 %"), lines)

    def _denominator_tables(self) -> Iterator[Table]:
        """Denominator / N at the largest N, for both polynomials."""
        lines = []
        for dim in sorted({row.head_dim for row in self.rows}):
            own = [r for r in self.rows if (r.setting, r.head_dim) == ("unit", dim)]
            if not own:
                continue
            row = max(own, key=lambda r: r.tokens)
            lines.append(
                [
                    str(dim),
                    f"{row.norms['denominator'] / row.tokens:.4f}",
                    f"{(2 * dim + 1) / (2 * dim):.4f}",
                    f"{row.published_denominator / row.tokens:.4f}",
                    f"{(dim + 2) / (2 * dim):.4f}",
                ]
            )
        columns = ("d", "1 + s + s²/2", "(2d+1)/2d", "1/2 + s/2 + s²", "(d+2)/2d")
        if lines:
            yield Table(
                "Denominator / N, unit rows: Taylor's and the published script's", columns, lines
            )

    def draw(self, stem: Path) -> list[Path]:
        """Eight panels, one for each intermediate result."""
        from benchmarks.scaling_plot import draw_scaling

        return draw_scaling(self, stem)


def is_close(law: PowerLaw, setting: str, quantity: str) -> bool:
    """True if both fitted exponents are within the tolerance of the derived ones."""
    expected = QUANTITIES[quantity].exponents[setting]
    return all(
        abs(found - wanted) <= TOLERANCE * max(abs(wanted), MIN_POWER)
        for found, wanted in zip((law.tokens, law.dim), expected, strict=True)
    )


@torch.no_grad()
def run_scaling(
    findings: ScalingFindings,
    device: torch.device,
    *,
    tokens: tuple[int, ...] = TOKENS,
    dims: tuple[int, ...] = DIMS,
    report: Report = lambda message, share: None,
) -> None:
    """Fill the findings, starting with the cheapest shapes."""
    shapes = sorted(((n, d) for n in tokens for d in dims), key=lambda s: s[0] * s[1] ** 3)
    total, done = sum(_cost(*shape) for shape in shapes), 0
    for n, d in shapes:
        for name in SETTINGS:
            findings.rows.append(_measure(name, n, d, device))
        done += _cost(n, d)
        report(f"N = {n:,}, d = {d}", done / total)
    findings.complete = True


def _samples(tokens: int, dim: int) -> int:
    """Number of draws; all queries of a draw share the sum of v, so a draw is one sample."""
    return max(MIN_SAMPLES, min(MAX_SAMPLES, MAX_PRODUCTS // (tokens * dim**3)))


def _cost(tokens: int, dim: int) -> int:
    """Estimated work of a shape, with a constant for its overhead."""
    return _samples(tokens, dim) * tokens * dim**3 + (1 << 30)


def _measure(name: str, tokens: int, dim: int, device: torch.device) -> NormRow:
    setting = SETTINGS[name]
    samples = _samples(tokens, dim)
    at_once = max(1, min(samples, CHUNK // tokens, MAX_ENTRIES // dim**3))
    generator = torch.Generator(device).manual_seed(tokens + dim)
    sums: dict[str, float] = {}
    drawn = 0
    while drawn < samples:
        size = (at_once, tokens, dim)
        q, k, v = (torch.randn(size, generator=generator, device=device) for _ in range(3))
        for quantity, lengths in measure_norms(setting, q, k, v).items():
            sums[quantity] = sums.get(quantity, 0.0) + at_once * float(lengths.double().mean())
        drawn += at_once
    means = {quantity: total / drawn for quantity, total in sums.items()}
    return NormRow(
        setting=name,
        tokens=tokens,
        head_dim=dim,
        samples=drawn,
        published_denominator=means.pop("published"),
        norms=means,
        expected={quantity: predict(quantity, setting, tokens, dim) for quantity in QUANTITIES},
    )


if __name__ == "__main__":
    main(ScalingFindings, run_scaling, __doc__)
