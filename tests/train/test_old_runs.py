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
MADE_WITH = ("2.13.0", "AVX512")
"""The version of torch and the instructions of the CPU, which determine the last bits."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def resumed(old: Path) -> Path:
    """The interrupted run, trained to the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(tiny("run.keep_last=1"), old / "interrupted", resume=True, quiet=True)
    finally:
        torch.set_num_threads(threads)
    return old / "interrupted"


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


@pytest.mark.skipif(
    (torch.__version__.split("+")[0], torch.backends.cpu.get_cpu_capability()) != MADE_WITH,
    reason=f"the bits are those of torch {MADE_WITH[0]} with {MADE_WITH[1]}",
)
def test_an_interrupted_run_ends_with_the_same_bits(old: Path, resumed: Path) -> None:
    assert final_state(resumed) == final_state(old / "finished")
    predictions = [RunFolder(run).predictions() for run in (resumed, old / "finished")]
    for name, values in predictions[0].items():
        assert values.tobytes() == predictions[1][name].tobytes(), name
