"""The three analyses: what they measure is what their theory or their registry says."""

from dataclasses import replace
from itertools import pairwise
from math import log

import pytest
import torch

from saccade.bench.analysis import approximation, crossover, crossover_measure, scaling
from saccade.bench.analysis.power_laws import PowerLaw
from saccade.bench.analysis.scaling_theory import QUANTITIES, SETTINGS, predict
from saccade.bench.attention import MECHANISMS
from saccade.bench.mechanisms import Mechanism, Operation, quadratic_flops
from saccade.bench.shapes import Shape
from saccade.layers import list_attentions
from saccade.ops import taylor_attention
from saccade.ops.taylor import num_features

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def norms():
    """Mean lengths at N = 2048, d = 8, each over 100 draws."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(100, 2048, 8, generator=generator) for _ in range(3))
    return {
        name: {
            quantity: float(lengths.double().mean())
            for quantity, lengths in scaling.measure_norms(setting, q, k, v).items()
        }
        for name, setting in SETTINGS.items()
    }


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_lengths_are_what_the_moments_say(norms, setting, quantity):
    """Within 8 %: lengths that fluctuate have a mean a little below their root mean square."""
    expected = predict(quantity, SETTINGS[setting], 2048, 8)
    assert norms[setting][quantity] == pytest.approx(
        expected, rel=0.16 if setting == "none" else 0.08
    )


def test_the_published_script_does_not_weigh_as_taylor(norms):
    assert norms["unit"]["published"] / 2048 == pytest.approx(10 / 16, rel=0.01)
    assert norms["unit"]["denominator"] / 2048 == pytest.approx(17 / 16, rel=0.01)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_exponents_are_the_limit_of_the_lengths(setting, quantity):
    def length(tokens, dim):
        return log(predict(quantity, SETTINGS[setting], tokens, dim))

    n, d = 2**60, 2**10
    slopes = (
        (length(2 * n, d) - length(n, d)) / log(2),
        (length(n, 2 * d) - length(n, d)) / log(2),
    )
    assert slopes == pytest.approx(QUANTITIES[quantity].exponents[setting], abs=0.01)


def test_a_wrong_exponent_is_not_close():
    law = PowerLaw(0.97, 0.0, -0.47, 0.0, 1.0, 9)
    assert scaling.is_close(law, "unit", "(k⊠k)ᵀv")
    assert not scaling.is_close(replace(law, tokens=0.85), "unit", "(k⊠k)ᵀv")
    assert not scaling.is_close(replace(law, dim=-0.4), "unit", "(k⊠k)ᵀv")
    assert not scaling.is_close(PowerLaw(0.0, 0.0, 0.06, 0.0, 1.0, 9), "unit", "q⊠q")


def test_scaling_fills_its_findings(tmp_path):
    findings = scaling.ScalingFindings({"device_name": "here"})
    shares = []
    scaling.run_scaling(
        findings,
        CPU,
        tokens=(64, 256, 1024),
        dims=(2, 4),
        report=lambda message, share: shares.append(share),
    )
    assert findings.complete
    assert len(findings.rows) == 3 * 3 * 2
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert {name: set(laws) for name, laws in findings.laws().items()} == {
        name: set(QUANTITIES) for name in SETTINGS
    }
    assert [path.suffix for path in findings.draw(tmp_path / "x")] == [".png", ".svg"]


def test_every_attention_is_compared_with_softmax():
    cases = approximation.make_cases()
    expected = set(list_attentions()) - {"softmax"} | {approximation.UNIFORM}
    for sweep in ("spread", "tokens", "head_dim"):
        assert {case.attention for case in cases if case.sweep == sweep} == expected


@pytest.mark.parametrize("name", list_attentions())
def test_distances_are_shares(name):
    row = approximation.measure_case(approximation.Case("spread", name, tokens=32, head_dim=8), CPU)
    assert 0 <= row.p20 <= row.misplaced <= row.p80 <= 1


def misplaced(name, **changes):
    case = approximation.Case("spread", name, **({"tokens": 64, "head_dim": 16} | changes))
    return approximation.measure_case(case, CPU).misplaced


def test_softmax_is_no_distance_from_itself():
    assert misplaced("softmax") < 1e-6


def test_distance_of_taylor_is_that_of_its_equation():
    generator = torch.Generator().manual_seed(0)
    q, k, _ = (torch.randn(1, 1, 64, 16, generator=generator) for _ in range(3))
    s = (q @ k.mT).double() / 4
    w = 1 + s + s**2 / 2
    difference = w / w.sum(dim=-1, keepdim=True) - torch.softmax(s, dim=-1)
    case = approximation.Case("spread", "taylor", tokens=64, head_dim=16)
    found, _ = approximation._errors(case, 0, CPU)
    assert found == pytest.approx(float(difference.abs().sum(dim=-1).mean() / 2), rel=1e-4)


def test_taylor_departs_as_scores_grow_and_favor_nears_with_features():
    assert misplaced("taylor", spread=0.25) < 0.01 < misplaced("taylor", spread=1.0)
    few, many = (misplaced("performer", spread=0.5, features=m) for m in (16, 1024))
    assert many < few / 2


def test_the_temperature_of_taylorshift_follows_the_scores():
    """Left at 1 its rows would be nearly uniform, 0.64 of uniform's distance at the least."""
    assert misplaced("taylorshift") < misplaced(approximation.UNIFORM) / 2


def test_a_limit_is_passed_where_the_curve_says():
    curve = {0.25: 0.001, 1.0: 0.1, 4.0: 0.5}
    assert approximation._reaches(curve, 0.01) == pytest.approx(0.5)
    assert approximation._reaches(curve, 0.9) is None
    assert approximation._reaches(curve, 0.0001) == 0.0


@pytest.fixture(scope="module")
def crossed():
    """As much of D = 8 as a millisecond allows: two N."""
    findings = crossover.CrossoverFindings({"device_name": "here"}, "float32")
    crossover.run_crossover(findings, CPU, head_dims=(8,), seconds=0.001)
    return findings


def test_crossover_measures_every_line(crossed):
    assert crossed.complete
    lines = {line.name for line in crossover_measure.LINES["cpu"]}
    first = min(point.tokens for point in crossed.points)
    assert {point.line for point in crossed.points if point.tokens == first} == lines
    for point in crossed.points:
        assert len(point.times_ms) >= crossover_measure.LEAST_ROUNDS
        assert point.p20_ms <= point.median_ms <= point.p80_ms
        assert point.tokens_per_s == pytest.approx(
            1e3 * point.heads * point.tokens / point.median_ms
        )


def test_crossover_counts_flops_and_memory(crossed):
    powers = [p for p in crossed.points if p.tokens & (p.tokens - 1) == 0]
    assert powers
    assert all(p.peak_mib is not None for p in powers)
    for p in crossed.points:
        per_token = 4 * p.tokens * 8
        if p.role == "efficient":
            features = num_features(8) if p.form == "torch" else 8 * 8 + 8 + 1
            per_token = 4 * features * 9
        assert p.flops == p.heads * p.tokens * per_token


def test_crossover_says_where_theory_is(crossed, tmp_path):
    conclusions = crossed.conclusions()
    assert conclusions["theory"] == [
        {"head_dim": 8, "N0": 73, "N0_symmetric": 45, "N1": 47, "N1_symmetric": 32}
    ]
    kinds = {(c["form"], c["rival"], c["measure"], c["theory"]) for c in conclusions["crossings"]}
    assert ("torch", "direct", "time", 45) in kinds
    assert ("published", "direct", "memory", 47) in kinds
    assert ("torch", "softmax", "time", None) in kinds
    assert [path.suffix for path in crossed.draw(tmp_path / "x")] == [".png", ".svg"]


def test_a_grid_ends_when_the_time_is_spent(crossed):
    assert crossed.remarks == ["D = 8: no time for all N from 24 on"]
    assert {p.tokens for p in crossed.points} == {16, 32}


def test_a_wrong_form_is_not_timed(monkeypatch):
    def build(setting, backend):
        def without_the_half(q, k, v):
            return taylor_attention(q, k, v, coefficients=(1.0, 1.0, 1.0))

        return Operation(without_the_half, quadratic_flops(setting.shape))

    monkeypatch.setitem(MECHANISMS._entries, "taylor-direct", Mechanism("taylor", build, ""))
    points, remarks = [], []
    measurement = crossover_measure.Measurement(
        points, remarks, CPU, "float32", 1.0, report=lambda message, share: None
    )
    measurement._run_shape(Shape(1, 2, 32, 8), 0.0)
    assert "direct" not in {point.line for point in points}
    (remark,) = remarks
    assert remark.startswith("direct at D=8 N=32 B=1 H=2: not timed: out is off by")


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_the_grid_surrounds_both_thresholds(dim):
    grid = crossover_measure.lengths(dim)
    assert grid[0] < (dim * dim + dim + 1) / 4
    assert grid[-1] > 3 * (dim * dim + dim + 1)
    assert max(b / a for a, b in pairwise(grid)) <= 1.5


def test_uniform_weights_are_alike():
    case = approximation.Case("spread", approximation.UNIFORM, tokens=2, head_dim=1)
    weights = approximation._weights(case, 0, torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2, 1))
    assert weights.tolist() == [[[[0.5, 0.5]]]]
