"""The statistics keep what they promise: shown by simulation, with seed noise and without."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm, t

from saccade.statistics import (
    SeedNoise,
    _crossed_mean,
    _Error,
    accuracy_interval,
    holm,
    paired_difference,
    seed_noise,
)

ACCURACY = 0.92


def tables(
    rng: np.random.Generator, gains: tuple[float, ...], *, seeds: int, images: int, noise: float
) -> list[np.ndarray]:
    """Methods on the same images: hard images are hard for all, each seed has its luck.

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
    assert share_found(0.5, seeds=3, noise=0.05) > 0.9
    assert share_found(0.5, seeds=3, noise=0.05, images=300) > 0.4


def test_more_seeds_find_what_few_cannot() -> None:
    few, many = (share_found(0.4, seeds=seeds, noise=0.2) for seeds in (2, 8))
    assert few < 0.4 < 0.8 < many


def families(
    p_of: Callable[[np.ndarray, np.ndarray, SeedNoise | None], float],
    *gains: float,
    seeds: int,
    noise: float,
    count: int = 150,
) -> np.ndarray:
    """Corrected p values of nine methods, compared with the first; (comparisons, 8)."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        padded = (*gains, *[0.0] * (9 - len(gains)))
        first, *others = drawn = tables(rng, padded, seeds=seeds, images=400, noise=noise)
        shared = seed_noise(drawn)
        found.append(holm([p_of(other, first, shared) for other in others]))
    return np.array(found)


def together(mine: np.ndarray, theirs: np.ndarray, noise: SeedNoise | None) -> float:
    return paired_difference(mine, theirs, noise=noise).p_value


def by_freedom(mine: np.ndarray, theirs: np.ndarray, _: SeedNoise | None) -> float:
    """Student's t with Satterthwaite's freedom, each pair for itself."""
    mean, variance, freedom = _crossed_mean(mine * 1.0 - theirs)
    return 2 * float(t.sf(abs(mean) / np.sqrt(variance), freedom))


@pytest.mark.parametrize(("seeds", "noise"), [(2, 0.3), (3, 0.0), (3, 0.1), (3, 0.5), (5, 0.3)])
def test_nine_equal_methods_are_all_called_equal_in_nineteen_of_twenty(
    seeds: int, noise: float
) -> None:
    least = families(together, seeds=seeds, noise=noise).min(axis=1)
    assert np.mean(least < 0.05) < 0.08
    assert np.mean(least < 0.001) <= 0.01


def test_seeds_that_agree_by_luck_would_be_caught() -> None:
    least = families(by_freedom, seeds=3, noise=0.5).min(axis=1)
    assert np.mean(least < 0.05) > 0.1


def test_a_method_whose_seeds_scatter_more_is_judged_by_them() -> None:
    """Of nine, the second: the others' seeds tell nothing of its own."""
    rng = np.random.default_rng(4)
    found: dict[bool, list[bool]] = {False: [], True: []}
    for _ in range(200):
        rest = tables(rng, (0.0,) * 8, seeds=3, images=400, noise=0.1)
        (wild,) = tables(rng, (0.0,), seeds=3, images=400, noise=0.6)
        shared = seed_noise([*rest, wild])
        assert shared
        found[True].append(paired_difference(wild, rest[0], noise=shared).p_value < 0.05)
        alone = _Error.of(wild * 1.0 - rest[0], shared).beyond(abs(wild.mean() - rest[0].mean()))
        found[False].append(alone < 0.05)
    assert np.mean(found[True]) < 0.16 < 0.2 < np.mean(found[False])


def test_what_nine_methods_tell_of_seeds_finds_more() -> None:
    gained = families(together, 0.0, 0.6, seeds=3, noise=0.05, count=60)[:, 0]
    alone = families(lambda a, b, _: together(a, b, None), 0.0, 0.6, seeds=3, noise=0.05, count=60)
    assert np.mean(gained < 0.05) > np.mean(alone[:, 0] < 0.05) + 0.2


@pytest.mark.parametrize("freedom", [1, 2, 16, 1000])
def test_where_seeds_are_all_of_the_chance_it_is_students_t(freedom: int) -> None:
    error = _Error.of(np.zeros((3, 50)), SeedNoise(7.0, freedom))
    one = np.sqrt(7.0 / 150)
    assert [error.beyond(far * one) for far in (0.5, 3, 12)] == pytest.approx(
        [2 * float(t.sf(far, freedom)) for far in (0.5, 3, 12)], rel=1e-4
    )
    assert error.half(0.95) == pytest.approx(one * float(t.ppf(0.975, freedom)))


def test_one_seed_has_no_use_for_the_noise_of_others() -> None:
    a, b = tables(np.random.default_rng(2), (0.3, 0.0), seeds=1, images=200, noise=0.3)
    assert paired_difference(a, b, noise=SeedNoise(7.0, 16)) == paired_difference(a, b)


def test_noise_of_two_is_their_own() -> None:
    rng = np.random.default_rng(2)
    a, b = tables(rng, (0.3, 0.0), seeds=3, images=200, noise=0.3)
    shared = seed_noise([a, b])
    assert shared == SeedNoise(pytest.approx(200 * np.var((a * 1.0 - b).mean(1), ddof=1)), 2)
    assert paired_difference(a, b, noise=shared) == paired_difference(a, b)
    assert seed_noise([a[:1], b[:1]]) is None
    with pytest.raises(ValueError, match=r"\(3, 200\), \(2, 200\).*of the same seeds"):
        seed_noise([a, b[:2]])


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
