"""Crossings and power laws are found where they were put, with intervals and errors that hold."""

from math import log

import numpy as np
import pytest
from benchmarks.power_laws import fit_power_law

from saccade.bench.crossings import (
    all_crossings,
    bracket_crossing,
    find_crossing,
)
from saccade.errors import ConfigError

GRID = [64, 96, 128, 192, 256, 384, 512, 768, 1024]


def steady(law, grid=GRID):
    return {n: [law(n)] * 5 for n in grid}


def noisy(law, generator, grid=GRID, repeats=15):
    return {n: law(n) * np.exp(0.05 * generator.standard_normal(repeats)) for n in grid}


def quadratic(n):
    return n * n / 300


def linear(n):
    return float(n)


def test_power_laws_cross_where_they_are_equal():
    found = find_crossing(steady(quadratic), steady(linear))
    assert found.verdict == "crosses"
    assert found.tokens == pytest.approx(300)
    assert (found.low, found.high) == pytest.approx((300, 300))
    assert found.changes == pytest.approx((300,))
    assert (found.first_tokens, found.last_tokens) == (64, 1024)


def test_a_shifted_curve_moves_the_crossing():
    """Twice as slow: a finder that returned a grid point or the theory would not notice."""
    found = find_crossing(steady(quadratic), steady(lambda n: 2.0 * n))
    assert found.tokens == pytest.approx(600)


def test_curves_that_do_not_cross():
    behind = find_crossing(steady(linear), steady(lambda n: 2.0 * n))
    assert (behind.verdict, behind.tokens, behind.high) == ("behind to the end", None, None)
    ahead = find_crossing(steady(linear), steady(lambda n: n / 2))
    assert (ahead.verdict, ahead.tokens, ahead.low) == ("ahead from the start", 64.0, None)
    assert behind.changes == ahead.changes == ()


def test_curves_that_cross_several_times():
    leads = {1: -1.0, 2: 1.0, 4: -1.0, 8: 1.0}
    changes = [2**0.5, 2**1.5, 2**2.5]
    assert all_crossings(leads) == pytest.approx(changes)
    rival = {n: [float(np.exp(lead))] * 3 for n, lead in leads.items()}
    found = find_crossing(rival, {n: [1.0] * 3 for n in leads})
    assert found.tokens == pytest.approx(changes[-1])
    assert found.changes == pytest.approx(changes)


def test_too_few_common_points_are_no_measurement():
    assert find_crossing({64: [1.0]}, {64: [2.0], 128: [1.0]}).verdict == "not measured"
    assert bracket_crossing({}, {}).verdict == "not measured"


def test_an_open_end_of_the_interval():
    """The lead at the last N is within the noise: the crossing may lie beyond the grid."""
    generator = np.random.default_rng(3)
    found = find_crossing(
        noisy(lambda n: n**2 / 1020, generator, repeats=7), noisy(linear, generator, repeats=7)
    )
    assert found.low is not None
    assert found.high is None


def covered(truth: float, experiments: int, *, planted: float = 1.0) -> int:
    count = 0
    for seed in range(experiments):
        generator = np.random.default_rng(seed)
        found = find_crossing(noisy(quadratic, generator), noisy(lambda n: planted * n, generator))
        count += found.low <= truth <= found.high
    return count


def test_the_interval_covers_the_truth_and_not_an_error():
    assert covered(300, 60) >= 45  # 90 % nominal; 54 expected
    assert covered(300, 60, planted=1.1) <= 6


def test_memory_within_a_tie_counts_for_neither_side():
    rival, ours = {64: 1.0, 128: 1.05, 256: 2.0}, {64: 1.02, 128: 1.0, 256: 1.0}
    assert bracket_crossing(rival, ours).verdict == "ahead from the start"
    found = bracket_crossing(rival, {64: 2.0, 128: 1.0, 256: 1.0})
    assert found.verdict == "crosses"
    assert 64 < found.tokens < 256
    assert (found.low, found.high) == (64.0, 256.0)


def law_points(generator, noise):
    return [
        (n, d, 3 * n**0.5 * d**-1.5 * float(np.exp(noise * generator.standard_normal())))
        for n in (64, 256, 1024, 4096)
        for d in (8, 16, 32)
    ]


def test_a_power_law_is_recovered():
    law = fit_power_law(law_points(np.random.default_rng(0), 0.0))
    assert (law.tokens, law.dim, law.constant) == pytest.approx((0.5, -1.5, 3.0))
    assert law.tokens_error < 1e-6
    assert law(100, 4) == pytest.approx(3 * 10 / 8)


def test_standard_errors_hold():
    scores = []
    for seed in range(200):
        law = fit_power_law(law_points(np.random.default_rng(seed), 0.1))
        scores += [(law.tokens - 0.5) / law.tokens_error, (law.dim + 1.5) / law.dim_error]
    assert 0.9 < np.std(scores) < 1.4  # Student's t with 9 degrees of freedom: 1.13


def test_a_fit_that_cannot_be_made_says_so():
    with pytest.raises(ConfigError, match="4 points; a power law needs"):
        fit_power_law([(2**i, 8, 1.0) for i in range(4)])
    with pytest.raises(ConfigError, match="3 points"):
        fit_power_law([(8, 8, 1.0), (16, 8, 1.0), (8, 16, 1.0)])


def test_leads_are_straight_on_log_axes():
    leads = {100: log(1 / 2), 400: log(2)}
    assert all_crossings(leads) == pytest.approx([200])
