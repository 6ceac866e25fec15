"""Counts by class beside scikit-learn's, calibration beside the evaluation's own."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from saccade.report.classes import class_counts, reliability
from saccade.report.collect import collect
from saccade.report.groups import Group, group_runs
from saccade.train.distributed import Ranks
from saccade.train.evaluation import evaluate
from tests.report.made_runs import make_run


def group_of(*folders: Path) -> Group:
    runs = [run for folder in folders for run in collect(folder).runs]
    (group,), _ = group_runs(runs, [])
    return group


def write(path: Path, target: object, predicted: object, confidence: object) -> Path:
    run = make_run(path, seed=len(list(path.parent.iterdir())) if path.parent.exists() else 0)
    kinds = {"target": np.int32, "predicted": np.int32, "confidence": np.float32}
    values = zip(kinds.items(), (target, predicted, confidence), strict=True)
    arrays = {name: np.asarray(own, kind) for (name, kind), own in values}
    run.write_predictions(arrays)
    judged = arrays["target"] >= 0
    accuracy = float((arrays["target"] == arrays["predicted"])[judged].mean())
    run.write("summary.json", {**run.summary(), "test_accuracy": accuracy})
    return path


def test_confusion_is_scikit_learns_over_all_seeds(tmp_path: Path) -> None:
    group = group_of(make_run(tmp_path / "0", seed=0).path, make_run(tmp_path / "1", seed=1).path)
    target, predicted = (
        np.concatenate([getattr(run.predictions, name) for run in group.runs])
        for name in ("target", "predicted")
    )
    counts = class_counts(group, 4)
    assert (counts.confusion == confusion_matrix(target, predicted)).all()
    assert counts.confusion.sum() == 800


def test_a_class_without_images_has_no_accuracy(tmp_path: Path) -> None:
    counts = class_counts(group_of(write(tmp_path / "run", [0, 0, 1], [0, 1, 1], [1, 1, 1])), 4)
    assert counts.accuracy[:2].tolist() == [0.5, 1.0]
    assert np.isnan(counts.accuracy[2:]).all()
    assert counts.mean_accuracy == 0.75
    assert counts.mix_ups(3) == [(0, 1, 0.5)]


def test_images_that_could_not_be_read_count_nowhere(tmp_path: Path) -> None:
    group = group_of(write(tmp_path / "run", [-1, 2, 3], [-1, 2, -1], [0, 1, 0]))
    assert class_counts(group, 4).confusion.sum() == 1
    assert reliability(group).error == 0


def test_calibration_error_is_the_evaluations(tmp_path: Path) -> None:
    """The same logits through `saccade evaluate`'s counting and through the report's."""
    logits = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * 2
    targets = torch.arange(300) % 4
    batch = SimpleNamespace(
        images=logits, targets=targets, valid=torch.ones(300, dtype=bool), index=torch.arange(300)
    )
    loader = SimpleNamespace(epoch=lambda _: [batch], num_left_out=0)
    judged = evaluate(torch.nn.Identity(), loader, num_classes=4, ranks=Ranks(torch.device("cpu")))
    confidence, predicted = logits.softmax(1).max(1)
    found = reliability(group_of(write(tmp_path / "run", targets, predicted, confidence)))
    assert found.error == pytest.approx(judged.calibration_error, abs=1e-6)
    assert found.error > 0.1
    assert found.sureness == pytest.approx(float(confidence.mean()) - judged.accuracy, abs=1e-6)
    assert found.weight.sum() == pytest.approx(1)


def test_a_calibrated_model_has_no_error(tmp_path: Path) -> None:
    predicted = [0] * 10
    target = [0] * 8 + [1] * 2
    found = reliability(group_of(write(tmp_path / "run", target, predicted, [0.8] * 10)))
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.accuracy.tolist() == [0.8]


def test_too_sure_and_not_sure_enough_do_not_cancel(tmp_path: Path) -> None:
    """Of ten 90 % sure ones half are right, of ten 50 % sure ones nine are."""
    target = [0] * 5 + [1] * 5 + [0] * 9 + [1]
    found = reliability(
        group_of(write(tmp_path / "run", target, [0] * 20, [0.9] * 10 + [0.5] * 10))
    )
    assert found.error == pytest.approx(0.4)
    assert found.sureness == pytest.approx(0, abs=1e-6)


def test_no_predictions_no_classes(tmp_path: Path) -> None:
    group = group_of(make_run(tmp_path / "run", keep_predictions=False).path)
    assert class_counts(group, 4) is None
    assert reliability(group) is None
