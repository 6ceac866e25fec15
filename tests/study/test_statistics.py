"""The statistics keep what they promise: shown by simulation, with seed noise and without."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from saccade.statistics import accuracy_interval, holm, paired_difference

ACCURACY = 0.92


def tables(
    rng: np.random.Generator, gains: tuple[float, float], *, seeds: int, images: int, noise: float
) -> list[np.ndarray]:
    """Two methods on the same images: hard images are hard for both, each seed has its luck.

    A gain shifts a method's margin; without one its true accuracy is `ACCURACY`.
    """
    spread = np.array([1.5, noise, 0.5])  # of images, of seeds, of the rest
    margin = norm.ppf(ACCURACY) * np.sqrt((spread**2).sum())
    shared = rng.normal(0, spread[0], images)
    return [
        margin
        + gain
        + shared
        + rng.normal(0, noise, (seeds, 1))
        + rng.normal(0, spread[2], (seeds, images))
        > 0
        for gain in gains
    ]


def share_found(gain: float, *, seeds: int, noise: float, images: int = 1000) -> float:
    """How often a test at 5 % calls the difference of two methods real."""
    rng = np.random.default_rng(0)
    found = [
        paired_difference(*tables(rng, (gain, 0.0), seeds=seeds, images=images, noise=noise))
        for _ in range(400)
    ]
    return float(np.mean([difference.p_value < 0.05 for difference in found]))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_methods_are_called_different_in_about_five_percent(seeds: int, noise: float) -> None:
    assert share_found(0.0, seeds=seeds, noise=noise) < 0.08


def test_a_test_blind_to_seeds_would_be_caught() -> None:
    """Pooling the seeds into one long row of images, the usual mistake, fails the bound above."""
    rng = np.random.default_rng(0)
    pairs = [tables(rng, (0.0, 0.0), seeds=3, images=1000, noise=0.4) for _ in range(200)]
    pooled = [paired_difference(a.reshape(1, -1), b.reshape(1, -1)) for a, b in pairs]
    assert np.mean([difference.p_value < 0.05 for difference in pooled]) > 0.3


def test_a_real_difference_is_found() -> None:
    assert share_found(0.5, seeds=3, noise=0.05) > 0.95
    assert share_found(0.5, seeds=3, noise=0.05, images=300) > 0.4


def test_more_seeds_find_what_few_cannot() -> None:
    few, many = (share_found(0.4, seeds=seeds, noise=0.2) for seeds in (2, 8))
    assert few < 0.4 < 0.8 < many


def share_held(
    interval: Callable[[np.ndarray], tuple[float, float]], *, seeds: int, noise: float
) -> float:
    """How often an interval holds the true accuracy."""
    rng = np.random.default_rng(1)
    held = []
    for _ in range(400):
        first, _ = tables(rng, (0.0, 0.0), seeds=seeds, images=500, noise=noise)
        low, high = interval(first)
        held.append(low <= ACCURACY <= high)
    return float(np.mean(held))


def ours(correct: np.ndarray) -> tuple[float, float]:
    found = accuracy_interval(correct)
    return found.low, found.high


def bootstrap(correct: np.ndarray) -> tuple[float, float]:
    """The percentile bootstrap that draws seeds and images again."""
    rng = np.random.default_rng(2)
    seeds, images = (rng.multinomial(n, np.full(n, 1 / n), size=100) / n for n in correct.shape)
    means = np.einsum("bs,bs->b", seeds, images @ correct.T)
    low, high = np.quantile(means, [0.025, 0.975])
    return low, high


@pytest.mark.parametrize(("seeds", "noise"), [(1, 0.0), (3, 0.0), (3, 0.1), (3, 0.4), (5, 0.4)])
def test_interval_holds_the_true_accuracy(seeds: int, noise: float) -> None:
    assert share_held(ours, seeds=seeds, noise=noise) > 0.9


def test_a_bootstrap_of_few_seeds_would_be_caught() -> None:
    assert share_held(bootstrap, seeds=3, noise=0.4) < 0.85


def test_one_seed_is_wilsons_interval() -> None:
    interval = accuracy_interval(np.arange(1000) < 900)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (0.9, 0.8799, 0.9171), abs=2e-4
    )


def test_all_right_is_not_certain() -> None:
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


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_unlike_tables_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 10\), baseline \(2, 10\)"):
        paired_difference(np.ones((3, 10)), np.ones((2, 10)))
    with pytest.raises(ValueError, match="expected \\(seeds, images\\)"):
        accuracy_interval(np.ones((3, 1)))
    with pytest.raises(ValueError, match="confidence=95"):
        accuracy_interval(np.ones((3, 10)), confidence=95)
