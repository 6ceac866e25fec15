"""Figures of a run's data, and the mass of its maps on the foreground."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from saccade.config import AugmentConfig
from saccade.data import load_splits
from saccade.explain.data_figures import _heading
from saccade.explain.data_pictures import (
    confident_mistakes,
    confused_pairs,
    describe_augmentation,
    predictions_of,
)
from saccade.runs import Predictions, RunFolder
from saccade.train import train
from tests.cli.conftest import Saccade
from tests.data.pictures import digits_folder
from tests.train.tiny_runs import forget_manifest, tiny


def by_name(out: str) -> dict[str, dict]:
    return {found["picture"]: found for found in map(json.loads, out.splitlines())}


def test_pictures_match_the_confusion_matrix_of_evaluate(
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


def test_missing_predictions_are_computed_again(digits_run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(digits_run, old)
    forget_manifest(RunFolder(old))
    (old / "predictions.npz").unlink()
    test = load_splits(RunFolder(old).config().data).test
    stored, computed = (predictions_of(RunFolder(run), test, 10) for run in (digits_run, old))
    assert np.array_equal(stored.predicted, computed.predicted)
    np.testing.assert_allclose(stored.confidence, computed.confidence, atol=1e-5)


def test_predictions_of_other_data_are_refused(
    saccade: Saccade, digits_run: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(digits_run, changed)
    forget_manifest(RunFolder(changed))
    stored = RunFolder(changed).predictions()
    np.savez(changed / "predictions.npz", **(stored | {"target": (stored["target"] + 1) % 10}))
    code, _, err = saccade("explain", changed, "--data", "--out", tmp_path / "out")
    assert code == 3
    assert "must have the labels of its stored predictions" in err


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
    assert predictions.num_judged == 5


def test_a_heading_names_both_classes() -> None:
    assert _heading("cat", "dog") == "cat taken for dog"
    first, second = (f"an uncommonly long class name number {n}" for n in (1, 2))
    heading = _heading(first, second)
    assert len(heading) <= 44
    assert heading == "an uncom…umber 1 taken for an uncom…umber 2"


def test_augmentation_is_described_by_configuration_keys() -> None:
    config = AugmentConfig(crop_padding=3, flip=True)
    assert describe_augmentation(config) == "as trained: crop_padding 3, flip"
    assert describe_augmentation(AugmentConfig()) == "as trained: no augmentation"


def test_foreground_command_reports_mass_before_and_after_training(
    saccade: Saccade, shapes_run: Path
) -> None:
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


def test_pictures_are_drawn_after_a_skipped_test_image(saccade: Saccade, tmp_path: Path) -> None:
    images = tmp_path / "images"
    for part, first in (("train", 0), ("test", 20)):
        digits_folder(images / part, first, first + 4)
    (images / "test" / "digit-3" / "021.png").write_bytes(b"no image")
    skipping = ["data.on_bad_image=skip", "data.name=folder", f"data.root={images}"]
    few = ["data.image_size=8", "data.num_train=null", "data.num_test=null", "train.epochs=1"]
    train(tiny(*skipping, *few, "train.batch_size=8"), tmp_path / "run", quiet=True)
    assert (RunFolder(tmp_path / "run").predictions()["predicted"] < 0).sum() == 1
    code, out, err = saccade(
        "explain", tmp_path / "run", "--data", "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    assert by_name(out).keys() == {"samples", "confused_pairs", "confident_mistakes"}
