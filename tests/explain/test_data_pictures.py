"""Pictures of a run's data, and the mass of its maps on the foreground."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from saccade.data import load_splits
from saccade.explain.data_pictures import describe_augmentation
from saccade.explain.mistakes import (
    Predictions,
    confident_mistakes,
    confused_pairs,
    read_predictions,
)
from saccade.runs import RunFolder
from saccade.sections import AugmentConfig
from tests.cli.conftest import Saccade


def by_name(out: str) -> dict[str, dict]:
    return {found["picture"]: found for found in map(json.loads, out.splitlines())}


def test_the_pictures_agree_with_the_evaluation(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    code, out, err = saccade("explain", digits_run, "--data", "--out", tmp_path, "--json")
    assert code == 0, err
    found = by_name(out)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}"
        for name in ("samples", "confused_pairs", "confident_mistakes")
        for kind in ("png", "svg")
    }
    confusion = np.array(json.loads(saccade("evaluate", digits_run, "--json")[1])["confusion"])
    both_ways = confusion + confusion.T
    np.fill_diagonal(both_ways, 0)
    pairs = found["confused_pairs"]["pairs"]
    assert [pair["count"] for pair in pairs] == sorted(both_ways[np.triu_indices(10)])[::-1][:5]
    first = pairs[0]
    assert both_ways[tuple(map(int, first["classes"]))] == first["count"] == len(first["mistakes"])
    surest = found["confident_mistakes"]["mistakes"]
    sure = [mistake["probability"] for mistake in surest]
    assert sure == sorted(sure, reverse=True)
    assert all(mistake["truth"] != mistake["predicted"] for mistake in surest)


def test_a_run_without_stored_predictions_is_asked_again(digits_run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(digits_run, old)
    (old / "predictions.npz").unlink()
    test = load_splits(RunFolder(old).config().data).test
    stored, asked = (read_predictions(RunFolder(run), test) for run in (digits_run, old))
    assert np.array_equal(stored.predicted, asked.predicted)
    np.testing.assert_allclose(stored.confidence, asked.confidence, atol=1e-5)


def test_predictions_of_other_data_are_refused(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(digits_run, changed)
    stored = RunFolder(changed).predictions()
    np.savez(changed / "predictions.npz", **(stored | {"target": (stored["target"] + 1) % 10}))
    code, _, err = saccade("explain", changed, "--data", "--out", tmp_path / "out")
    assert code == 3
    assert "not of the data that is there now" in err


def test_mistakes_are_ranked_and_unreadable_images_left_out() -> None:
    predictions = Predictions(
        target=np.array([0, 1, 1, 2, 0, 0]),
        predicted=np.array([1, 0, 1, 0, -1, 1]),
        confidence=np.array([0.5, 0.9, 1.0, 0.7, 1.0, 0.6]),
    )
    assert [mistake.place for mistake in confident_mistakes(predictions, 9)] == [1, 3, 5, 0]
    pairs = confused_pairs(predictions, 9)
    assert [(pair.first, pair.second, pair.count) for pair in pairs] == [(0, 1, 3), (0, 2, 1)]
    assert [mistake.place for mistake in pairs[0].first_as_second] == [5, 0]
    assert predictions.readable == 5


def test_augmentation_is_told_in_the_words_of_the_configuration() -> None:
    config = AugmentConfig(crop_padding=3, flip=True)
    assert describe_augmentation(config) == "as trained: crop_padding 3, flip"
    assert describe_augmentation(AugmentConfig()) == "as trained: no augmentation"


def test_mass_on_the_foreground(saccade: Saccade, shapes_run: Path) -> None:
    code, out, err = saccade("explain", shapes_run, "--foreground", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["attention"], found["images"]) == ("taylorshift", 61)
    assert found["uniform"]["mean"] == pytest.approx(0.12, abs=0.03)
    for method in ("attention", "rollout", "gradient"):
        before, after, gain = (
            found["methods"][method][key]["mean"] for key in ("untrained", "trained", "gain")
        )
        assert gain == pytest.approx(after - before)
        assert 0 < before < 0.5
    plain = found["methods"]["attention"]["untrained"]["mean"]
    assert plain == pytest.approx(found["uniform"]["mean"], abs=0.01)
    assert "trained" in saccade("explain", shapes_run, "--foreground")[1]
