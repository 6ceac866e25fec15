"""The threshold below which a prediction is unsure."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.ship_weights import SHARES, _bound, calibrate_threshold

from saccade.errors import ConfigError


def model(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and predictions that are right with the probability (1 + confidence) / 2."""
    confidence = rng.random(count)
    return confidence, rng.random(count) < (1 + confidence) / 2


def test_the_bound_is_exact() -> None:
    from scipy.stats import binom

    bound = _bound(3, 200, 0.05)
    assert binom.cdf(3, 200, bound) == pytest.approx(0.05)
    assert _bound(7, 7, 0.05) == 1


def test_the_bound_holds_on_new_images_as_often_as_promised() -> None:
    rng, broken, trials = np.random.default_rng(0), 0, 100
    fresh, right = model(200_000, rng)
    for _ in range(trials):
        found = calibrate_threshold(*model(1000, rng), max_error=0.2, level=0.8)
        broken += (~right[fresh >= found.below]).mean() > 0.2
    assert broken <= 0.2 * trials
    naive = 0  # the comparison can fail: a threshold by the observed error alone breaks the promise
    for _ in range(trials):
        confidence, correct = model(1000, rng)
        order = np.argsort(-confidence)
        errors = np.cumsum(~correct[order]) / np.arange(1, 1001)
        below = confidence[order][np.flatnonzero(errors <= 0.2)[-1]]
        naive += (~right[fresh >= below]).mean() > 0.2
    assert naive > 0.2 * trials


def test_a_sure_model_accepts_everything() -> None:
    confidence = np.linspace(0.6, 1, 1000)
    found = calibrate_threshold(confidence, np.ones(1000, bool))
    assert (found.accepted, found.errors, found.below) == (1000, 0, 0.6)


def test_ties_are_accepted_together() -> None:
    confidence = np.repeat([0.9, 0.5], 500)
    found = calibrate_threshold(confidence, confidence > 0.6)
    assert (found.below, found.accepted) == (0.9, 500)
    assert min(SHARES) == 0.5


def test_an_unreachable_error_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_error must be reachable with 50 images, got 0.02"):
        calibrate_threshold(np.linspace(0, 1, 50), np.ones(50, bool))
