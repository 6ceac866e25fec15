"""Simulations show that the tests and intervals are valid, with and without seed noise."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.family_wise_error import (
    ACCURACY,
    LIMIT_CASES,
    SCATTERS,
    Case,
    draw,
    many_images,
    simulate,
)
from benchmarks.family_wise_error import cases as committed_cases
from scipy.stats import t

from saccade.stats import (
    Difference,
    SeedNoise,
    _Error,
    accuracy_interval,
    corrected_p_values,
    holm,
    own_factor,
    paired_difference,
    seed_scatter,
)

ROOT = Path(__file__).parents[2]


def tables(
    rng: np.random.Generator, gains: tuple[float, ...], *, seeds: int, images: int, noise: float
) -> list[np.ndarray]:
    """Simulate methods with margins increased by `gain`; at 0 the accuracy is `ACCURACY`."""
    return draw(rng, [noise] * len(gains), seeds=seeds, images=images, gains=gains)


def share_found(gain: float, *, seeds: int, noise: float, images: int = 1000) -> float:
    """Rate at which a test at 5 % finds two methods different."""
    rng = np.random.default_rng(0)
    found = [
        paired_difference(*tables(rng, (gain, 0.0), seeds=seeds, images=images, noise=noise))
        for _ in range(400)
    ]
    return float(np.mean([difference.p_value < 0.05 for difference in found]))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seeds", [3, 5])
def test_false_positive_rate_is_about_five_percent(seeds: int, noise: float) -> None:
    assert share_found(0.0, seeds=seeds, noise=noise) < 0.08


def test_pooling_the_seeds_has_too_many_false_positives() -> None:
    """Pooling the seeds into one row of images is a common mistake."""
    rng = np.random.default_rng(0)
    pairs = [tables(rng, (0.0, 0.0), seeds=3, images=1000, noise=0.4) for _ in range(200)]
    pooled = [paired_difference(a.reshape(1, -1), b.reshape(1, -1)) for a, b in pairs]
    assert np.mean([difference.p_value < 0.05 for difference in pooled]) > 0.3


def test_a_real_difference_is_found() -> None:
    assert share_found(0.5, seeds=3, noise=0.05) > 0.9
    assert share_found(0.5, seeds=3, noise=0.05, images=300) > 0.4


def test_more_seeds_have_more_power() -> None:
    few, many = (share_found(0.4, seeds=seeds, noise=0.2) for seeds in (2, 8))
    assert few < 0.4 < 0.8 < many


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_noisy_baseline_causes_no_false_claims(seeds: int) -> None:
    """As on the page, all 36 pairs of nine methods are one family."""
    found = simulate(Case(9, seeds, "baseline 5x", 0.1), 120)
    assert found.family_wise_error < 0.05 + found.error_margin
    assert found.differences_held > 0.93


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.3), (3, 0.0), (3, 0.3), (5, 0.1)])
def test_nine_equal_methods_are_rarely_found_different(seeds: int, noise: float) -> None:
    found = simulate(Case(9, seeds, "equal", noise), 60)
    assert found.family_wise_error < 0.05 + found.error_margin
    assert found.differences_held > 0.93


@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("methods", [3, 9])
def test_family_wise_error_with_seed_noise_only(methods: int, seeds: int, scatter: str) -> None:
    count = 4000
    error = many_images(Case(methods, seeds, scatter, 1.0), count)
    assert error < 0.05 + 2 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize(("seeds", "least"), [(2, 0.12), (3, 0.12), (5, 0.12)])
def test_holm_with_pooled_scatter_only_has_too_many_false_claims(seeds: int, least: float) -> None:
    """The baseline scatters five times as much as the eight others."""
    assert many_images(Case(9, seeds, "baseline 5x", 1.0), 2000, guard=False) > least


def test_tests_converge_to_the_limit_of_many_images() -> None:
    """`many_images` uses Student's t with these degrees of freedom for the two p values."""
    seeds, images = 3, 200_000
    rng = np.random.default_rng(5)
    base, *others = (
        np.broadcast_to(rng.random(images) < 0.9 + rng.normal(0, 0.02, (seeds, 1)), (seeds, images))
        for _ in range(4)
    )
    scatter = seed_scatter([base, *others])
    found = paired_difference(others[0], base, shared=scatter.shared, own=scatter.of_pair(1, 0))
    means = np.stack([own.mean(axis=1) for own in (base, *others)])
    rest = means - means.mean(axis=0)
    squares = rest.var(axis=1, ddof=1) * 4 / 3
    distance = abs(found.mean) * math.sqrt(seeds)
    shared = 2 * t.sf(distance / math.sqrt(2 * squares.mean()), 3 * (seeds - 1))
    own = 2 * t.sf(distance / math.sqrt(squares[:2].sum()), seeds - 1)
    assert (found.p_shared, found.p_own) == pytest.approx((shared, own), rel=0.05)


def test_committed_table_has_all_cases_and_valid_rates() -> None:
    """No rate is above 5 % by more than sampling error."""
    found = json.loads(
        (ROOT / "results" / "family_wise_error" / "family_wise_error_202611.json").read_text()
    )
    keys = ("methods", "seeds", "scatter", "noise", "shared")
    for rows, cases in (
        (found["cases"], list(committed_cases())),
        (found["many_images"], LIMIT_CASES),
    ):
        assert [[row[key] for key in keys] for row in rows] == [
            [getattr(case, key) for key in keys] for case in cases
        ]
    highest = max(row["family_wise_error"] for row in found["many_images"])
    assert highest < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 20_000)
    for row in found["cases"]:
        assert row["family_wise_error"] < 0.05 + 3 * math.sqrt(0.05 * 0.95 / row["comparisons"])
        assert row["differences_held"] > 0.925
        assert row["accuracies_held"] > 0.945


def test_committed_limit_matches_the_script() -> None:
    found = json.loads(
        (ROOT / "results" / "family_wise_error" / "family_wise_error_202611.json").read_text()
    )
    case = Case(9, 3, "baseline 5x", 1.0)
    row = found["many_images"][LIMIT_CASES.index(case)]
    assert many_images(case, 20_000) == row["family_wise_error"]


def test_pooled_scatter_of_nine_methods_has_more_power() -> None:
    """With five seeds, two methods have 4 degrees of freedom and nine methods have 32."""
    rng = np.random.default_rng(3)
    nine, two = [], []
    for _ in range(60):
        drawn = tables(rng, (0.45, *[0.0] * 8), seeds=5, images=400, noise=0.1)
        scatter = seed_scatter(drawn)
        assert scatter
        nine.append(paired_difference(drawn[0], drawn[1], shared=scatter.shared).p_shared)
        two.append(paired_difference(drawn[0], drawn[1]).p_shared)
    assert np.mean(np.array(nine) < 0.01) > np.mean(np.array(two) < 0.01) + 0.2


def test_common_seed_effect_is_removed() -> None:
    rng = np.random.default_rng(6)
    means = rng.normal(0, 0.01, (4, 3))
    flat = [np.broadcast_to(own[:, None], (3, 50)) for own in means]
    moved = [own + np.array([[0.3], [0.0], [-0.2]]) for own in flat]
    expected, found = seed_scatter(flat), seed_scatter(moved)
    assert found.squares == pytest.approx(expected.squares)
    pair = paired_difference(moved[0], moved[1], own=found.of_pair(0, 1))
    before = paired_difference(flat[0], flat[1], own=expected.of_pair(0, 1))
    assert pair.p_own == pytest.approx(before.p_own)


def test_pair_uses_the_larger_of_both_scatters() -> None:
    """The larger p value and the wider interval are used."""
    rng = np.random.default_rng(4)
    a, b = tables(rng, (1.0, 0.0), seeds=3, images=400, noise=0.1)
    little, much = SeedNoise(0.5, 16), SeedNoise(5.0, 2)
    powerful = paired_difference(a, b, shared=little, own=little)
    guarded = paired_difference(a, b, shared=little, own=much)
    assert guarded.p_shared == powerful.p_shared < 0.05 < 0.1 < guarded.p_own == guarded.p_value
    assert guarded.low < powerful.low < powerful.high < guarded.high
    swapped = paired_difference(a, b, shared=much, own=little)
    assert (swapped.low, swapped.p_value) == (guarded.low, guarded.p_value)


def test_corrected_p_values_match_hand_computation() -> None:
    family = [
        Difference(0.1, 0.0, 0.2, p_shared=0.001, p_own=0.02, seeds=3),
        Difference(0.1, 0.0, 0.2, p_shared=0.02, p_own=0.001, seeds=3),
        Difference(0.1, 0.0, 0.2, p_shared=0.04, p_own=None, seeds=1),
        Difference(0.1, 0.0, 0.2, p_shared=0.5, p_own=0.9, seeds=3),
    ]
    assert corrected_p_values(family) == pytest.approx([0.03, 0.06, 0.08, 1.0])
    assert corrected_p_values(family[:1]) == pytest.approx([0.03])
    assert corrected_p_values([]) == []
    assert [own_factor(seeds, 36) for seeds in (2, 3, 5, 10, 100)] == [1.5, 1.5, 2.5, 5, 36]
    assert own_factor(100, 1) == 1.5


@pytest.mark.parametrize("freedom", [1, 2, 16, 1000])
def test_seed_noise_only_gives_students_t(freedom: int) -> None:
    error = _Error.of(np.zeros((3, 50)), SeedNoise(7.0, freedom))
    one = np.sqrt(7.0 / 150)
    assert [error.beyond(far * one) for far in (0.5, 3, 12)] == pytest.approx(
        [2 * float(t.sf(far, freedom)) for far in (0.5, 3, 12)], rel=1e-4
    )
    assert error.half(0.95) == pytest.approx(one * float(t.ppf(0.975, freedom)))


def test_one_seed_ignores_the_noise_of_other_methods() -> None:
    a, b = tables(np.random.default_rng(2), (0.3, 0.0), seeds=1, images=200, noise=0.3)
    noise = SeedNoise(7.0, 16)
    assert paired_difference(a, b, shared=noise, own=noise) == paired_difference(a, b)
    assert paired_difference(a, b).p_own is None


def test_scatter_of_two_methods_is_that_of_their_differences() -> None:
    rng = np.random.default_rng(2)
    a, b = tables(rng, (0.3, 0.0), seeds=3, images=200, noise=0.3)
    scatter = seed_scatter([a, b])
    expected = SeedNoise(pytest.approx(200 * np.var((a * 1.0 - b).mean(1), ddof=1)), 2)
    assert scatter.shared == scatter.of_pair(0, 1) == expected
    found = paired_difference(a, b)
    assert found == paired_difference(a, b, shared=scatter.shared, own=scatter.of_pair(0, 1))
    assert found.p_shared == found.p_own
    assert seed_scatter([a[:1], b[:1]]) is None
    with pytest.raises(ValueError, match=r"\(3, 200\), \(2, 200\)"):
        seed_scatter([a, b[:2]])


def share_held(
    interval: Callable[[np.ndarray], tuple[float, float]], *, seeds: int, noise: float
) -> float:
    """Rate at which an interval contains the true accuracy."""
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(400):
        first, _ = tables(rng, (0.0, 0.0), seeds=seeds, images=500, noise=noise)
        low, high = interval(first)
        covered.append(low <= ACCURACY <= high)
    return float(np.mean(covered))


def ours(correct: np.ndarray) -> tuple[float, float]:
    found = accuracy_interval(correct)
    return found.low, found.high


def bootstrap(correct: np.ndarray) -> tuple[float, float]:
    """Percentile bootstrap that resamples seeds and images."""
    rng = np.random.default_rng(2)
    seeds, images = (rng.multinomial(n, np.full(n, 1 / n), size=100) / n for n in correct.shape)
    means = np.einsum("bs,bs->b", seeds, images @ correct.T)
    low, high = np.quantile(means, [0.025, 0.975])
    return low, high


@pytest.mark.parametrize(
    ("seeds", "noise"),
    [(1, 0.0), (2, 0.1), (2, 0.4), (3, 0.0), (3, 0.1), (3, 0.4), (5, 0.4)],
)
def test_interval_contains_the_true_accuracy(seeds: int, noise: float) -> None:
    assert share_held(ours, seeds=seeds, noise=noise) > 0.93


def test_bootstrap_of_few_seeds_has_too_low_coverage() -> None:
    assert share_held(bootstrap, seeds=3, noise=0.4) < 0.85


def test_one_seed_gives_wilsons_interval() -> None:
    interval = accuracy_interval(np.arange(1000) < 900)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (0.9, 0.8799, 0.9171), abs=2e-4
    )


def test_interval_has_positive_width_if_all_are_correct() -> None:
    interval = accuracy_interval(np.ones((3, 100)))
    assert interval.mean == interval.high == 1
    assert 0.95 < interval.low < 0.98
    same = paired_difference(np.ones((3, 100)), np.ones((3, 100)))
    assert (same.mean, same.p_value) == (0, 1)
    assert 0.01 < same.high < 0.1


def test_difference_is_antisymmetric() -> None:
    rng = np.random.default_rng(2)
    a, b = tables(rng, (0.3, 0.0), seeds=3, images=200, noise=0.1)
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert (there.mean, there.low) == (-back.mean, -back.high)
    assert there.p_value == back.p_value


def test_holm_matches_hand_computation() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_invalid_tables_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape of correct, \(3, 10\), got \(2, 10\)"):
        paired_difference(np.ones((3, 10)), np.ones((2, 10)))
    with pytest.raises(ValueError, match="must have shape \\(seeds, images\\)"):
        accuracy_interval(np.ones((3, 1)))
    with pytest.raises(ValueError, match="between 0 and 1, got 95"):
        accuracy_interval(np.ones((3, 10)), confidence=95)
