"""A run as training leaves it goes through, and the made runs of the other tests are like it."""

from pathlib import Path

import pytest

from saccade.report import write_report
from saccade.runs import RunFolder
from saccade.train import train
from tests.report.made_runs import make_run
from tests.train.tiny_runs import tiny


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("real") / "run"
    train(tiny("train.epochs=2", "model.attention=taylor"), out, quiet=True)
    return RunFolder(out)


def test_the_report_of_a_trained_run(real: RunFolder) -> None:
    report = write_report(real.path)
    summary = real.summary()
    row = report.findings.rows[0]
    assert report.left_out == []
    assert (row.label, row.accuracy) == ("taylor", summary["test_accuracy"])
    assert (row.flops, row.img_per_s) == (summary["flops"], summary["img_per_s"])
    drawn = {file.stem for file in report.files if file.suffix == ".svg"}
    assert {
        "accuracy_over_time",
        "class_accuracy",
        "confusion_taylor",
        "reliability_taylor",
    } <= drawn


def test_made_runs_have_nothing_that_real_ones_have_not(real: RunFolder, tmp_path: Path) -> None:
    made = make_run(tmp_path / "run")
    assert made.summary().keys() <= real.summary().keys()
    assert made.environment().keys() <= real.environment().keys()
    assert made.dataset().keys() <= real.dataset().keys()
    assert made.metrics("epoch")[0].keys() <= real.metrics("epoch")[0].keys()
    kinds = [{k: v.dtype for k, v in run.predictions().items()} for run in (made, real)]
    assert kinds[0] == kinds[1]
