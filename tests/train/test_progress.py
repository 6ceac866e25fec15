"""The live bar tells of the row that came last."""

import sys

import pytest

from saccade.train.progress import LiveReporter, SilentReporter, choose_reporter

STEP = {"kind": "step", "step": 30, "epoch": 1, "loss": 2.5, "lr": 0.1, "img_per_s": 900.0}
EPOCH = {
    "kind": "epoch",
    "step": 40,
    "epoch": 2,
    "train_loss": 1.25,
    "train_accuracy": 0.5,
    "val_accuracy": 0.75,
    "val_loss": 1.0,
    "lr": 0.1,
    "seconds": 3.0,
    "img_per_s": 800.0,
}


def test_the_bar_follows_steps_and_epochs() -> None:
    reporter = LiveReporter()
    task = reporter._progress.tasks[0]
    reporter.row(STEP)
    assert task.description == "epoch 2  loss 2.5000  900 img/s"
    reporter.row(EPOCH)
    assert (task.completed, task.description) == (
        40,
        "epoch 2  loss 1.2500  val acc 0.7500  800 img/s",
    )
    reporter.row({**STEP, "step": 50, "epoch": 2})
    assert task.description == "epoch 3  loss 2.5000  val acc 0.7500  900 img/s"


def test_without_stderr_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert type(choose_reporter(is_main=True, quiet=False)) is SilentReporter
