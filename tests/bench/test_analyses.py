"""Scaling and approximation: what they measure is what their theory or their registry says."""

from dataclasses import replace
from math import log

import pytest
import torch
from benchmarks import approximation, scaling
from benchmarks.power_laws import PowerLaw
from benchmarks.scaling_theory import QUANTITIES, SETTINGS, predict

from saccade.layers import list_attentions
from saccade.layers.attentions import ATTENTIONS

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


def test_every_attention_whose_maps_need_no_training_is_compared_with_softmax():
    """Attentions of tokens to themselves and learned mixtures of keys are left out."""
    entries = {name: ATTENTIONS[name] for name in list_attentions()}
    left_out = {name for name, entry in entries.items() if entry.self_only or entry.untrained}
    assert left_out >= {"agent", "eva", "linformer", "nystrom", "reformer"}
    cases = approximation.make_cases()
    expected = set(list_attentions()) - left_out - {"softmax"} | {approximation.UNIFORM}
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


def test_uniform_weights_are_alike():
    case = approximation.Case("spread", approximation.UNIFORM, tokens=2, head_dim=1)
    weights = approximation._weights(case, 0, torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2, 1))
    assert weights.tolist() == [[[[0.5, 0.5]]]]
