"""Runs of an earlier revision load, evaluate and resume.

The archive holds two runs of `tiny("run.keep_last=1")`, trained on one thread by revision 021bd99:
`finished`, and `interrupted` by SIGTERM after step 19 of 42, in the middle of an epoch.
"""

import tarfile
from pathlib import Path

import pytest
import torch

from saccade.runs import RunFolder
from saccade.train import load_model, train
from saccade.train.inference import evaluate_run
from tests.train.tiny_runs import final_state, tiny

ARCHIVE = Path(__file__).parent / "run_finished_and_interrupted.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def resumed(old: Path) -> Path:
    """The interrupted run, trained to the end."""
    train_on_one_thread(old / "interrupted", resume=True)
    return old / "interrupted"


def train_on_one_thread(run: Path, *, resume: bool = False) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(tiny("run.keep_last=1"), run, resume=resume, quiet=True)
    finally:
        torch.set_num_threads(threads)


def test_a_finished_run_loads_and_evaluates(old: Path) -> None:
    run = RunFolder.open(old / "finished")
    assert run.config() == tiny("run.keep_last=1")
    assert run.damage() == {}
    summary, measured = run.summary(), evaluate_run(run, device="cpu")
    assert (measured["count"], measured["correct"]) == (61, round(61 * summary["test_accuracy"]))
    assert measured["loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    model, info = load_model(run)
    assert (info.num_classes, model.training) == (10, False)
    assert train(run.config(), run.path, resume=True, quiet=True) == summary


def test_an_interrupted_run_evaluates(old: Path) -> None:
    run = RunFolder.open(old / "interrupted")
    assert run.status()["state"] == "preempted"
    assert evaluate_run(run, device="cpu")["count"] == 61


def test_an_interrupted_run_ends_as_the_uninterrupted_one(old: Path, resumed: Path) -> None:
    ended, whole = RunFolder(resumed), RunFolder(old / "finished")
    assert ended.damage() == {}
    losses = [[row["train_loss"] for row in run.metrics("epoch")] for run in (ended, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert [start["step"] for start in ended.environment()["resumed"]] == [19]
    assert ended.summary()["test_loss"] == pytest.approx(whole.summary()["test_loss"], rel=1e-3)


def test_an_interrupted_run_ends_with_the_same_bits(
    old: Path, resumed: Path, tmp_path: Path
) -> None:
    finished = old / "finished"
    train_on_one_thread(tmp_path / "again")
    if final_state(tmp_path / "again") != final_state(finished):
        pytest.skip("this torch and processor train the old run to other bits")
    assert final_state(resumed) == final_state(finished)
    predictions = [RunFolder(run).predictions() for run in (resumed, finished)]
    for name, values in predictions[0].items():
        assert values.tobytes() == predictions[1][name].tobytes(), name
