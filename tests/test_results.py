"""From predictions to numbers: what counts, what is paired, and what is left alone."""

import numpy as np
import pytest

from saccade.results import TestedRun, results_of, skipped_note
from saccade.runs import Predictions
from saccade.stats import accuracy_interval, paired_difference

TARGET = np.arange(40) % 4


def predictions(
    wrong: int, unread: tuple[int, ...] = (), target: np.ndarray = TARGET
) -> Predictions:
    """The first so many images mistaken, some not read, the others right."""
    predicted, known = target.copy(), target.copy()
    predicted[:wrong] = (predicted[:wrong] + 1) % 4
    for place in unread:
        predicted[place] = known[place] = -1
    return Predictions(known, predicted, np.full(len(target), 0.5))


def run(seed: int, wrong: int, unread: tuple[int, ...] = (), **more: object) -> TestedRun:
    values = {"fold": 0, "folds": 1, "accuracy": None, **more}
    return TestedRun(seed=seed, predictions=predictions(wrong, unread), **values)


def test_unread_images_are_neither_right_nor_wrong() -> None:
    own = predictions(10, unread=(0, 39))
    assert (own.num_judged, own.num_skipped) == (38, 2)
    assert own.right.sum() == 29
    assert own.accuracy == 29 / 38
    assert own.wrong.tolist() == [*range(1, 10)]
    assert own.judged_only().judged.all()
    assert len(own.judged_only().target) == 38


def test_an_accuracy_is_over_the_images_that_every_seed_judged() -> None:
    found = results_of({"a": [run(0, 10, (39,)), run(1, 12, (39, 0))]}, None).accuracies["a"]
    right = np.array([[False] * 9 + [True] * 29, [False] * 11 + [True] * 27])
    expected = accuracy_interval(right)
    assert (found.mean, found.low, found.high) == (expected.mean, expected.low, expected.high)
    assert found.by_seed == {0: 29 / 38, 1: 27 / 38}
    assert found.by_run == {(0, 0): 29 / 39, (1, 0): 27 / 38}
    assert (found.num_images, found.num_skipped) == (38, 2)


def test_a_difference_is_over_the_images_that_both_judged() -> None:
    groups = {"a": [run(0, 10, (39,))], "b": [run(0, 14, (38,))]}
    (claim,) = results_of(groups, "a").against_baseline
    b, a = (np.array([False] * wrong + [True] * (38 - wrong)) for wrong in (14, 10))
    expected = paired_difference(b, a)
    assert (claim.first, claim.second, claim.difference) == ("b", "a", expected.mean)
    assert claim.p_value == expected.p_value


def test_a_pair_with_few_seeds_is_held_to_the_scatter_of_its_own_groups() -> None:
    """Softmax scatters most and lacks two seeds that the others have."""
    wrong = {"softmax": (2, 20, 9), "a": (6, 7, 8, 7, 6), "b": (1, 2, 2, 1, 3)}
    groups = {name: [run(s, n) for s, n in enumerate(own)] for name, own in wrong.items()}
    fewer = {name: own[:3] for name, own in groups.items()}
    found, expected = results_of(groups, "softmax"), results_of(fewer, "softmax")
    for claim, same in zip(found.against_baseline, expected.against_baseline, strict=True):
        assert claim.seeds == same.seeds == (0, 1, 2)
        assert (claim.low, claim.high, claim.p_value) == (same.low, same.high, same.p_value)
    (others,), (with_three,) = found.others, expected.others
    assert others.seeds == (0, 1, 2, 3, 4)
    assert others.p_value < with_three.p_value


def test_runs_of_other_images_are_not_paired() -> None:
    other = TestedRun(0, 0, 1, None, predictions(3, target=TARGET[::-1].copy()))
    found = results_of({"a": [run(0, 10)], "b": [other]}, "a")
    assert found.against_baseline == []
    assert found.accuracies["b"].mean == 37 / 40


def test_a_seed_with_a_fold_missing_is_in_no_interval() -> None:
    whole = [run(0, 10, fold=fold, folds=2) for fold in (0, 1)]
    half = run(1, 20, fold=0, folds=2)
    found = results_of({"a": [*whole, half]}, None).accuracies["a"]
    complete = results_of({"a": whole}, None).accuracies["a"]
    assert (found.mean, found.low, found.high) == (complete.mean, complete.low, complete.high)
    assert found.by_seed == {0: 0.75}
    assert found.by_run == {(0, 0): 0.75, (0, 1): 0.75, (1, 0): 0.5}
    alone = results_of({"a": [half]}, None).accuracies["a"]
    assert (alone.mean, alone.low, alone.by_seed) == (0.5, None, {})


def test_runs_without_predictions_have_the_accuracy_of_their_summary() -> None:
    runs = [TestedRun(seed, 0, 1, accuracy, None) for seed, accuracy in ((0, 0.5), (1, 0.7))]
    found = results_of({"a": runs, "none": []}, None)
    assert found.accuracies["a"].mean == pytest.approx(0.6)
    assert found.accuracies["a"].low is None
    assert found.accuracies["a"].spread == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert found.accuracies["none"].mean is None


def test_runs_on_different_data_are_not_compared() -> None:
    groups = {name: [run(0, wrong), run(1, wrong)] for name, wrong in (("a", 2), ("b", 30))}
    found = results_of(groups, "a", is_compared=False)
    assert found.against_baseline == found.others == []
    assert results_of(groups, "a").against_baseline[0].holds


def test_the_note_counts_every_image() -> None:
    told = skipped_note(1147, 1)
    assert told == "1 of 1,148 test images could not be read and are not counted"
