"""The live bar shows the newest row."""

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


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (80, "epoch 2  loss 1.2500  val acc 0.7500  800 img/s"),
        (52, "epoch 2  loss 1.2500  val acc 0.7500"),
        (40, "epoch 2  loss 1.2500"),
    ],
)
def test_a_narrow_terminal_shows_fewer_values_and_whole_numbers(
    columns: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    reporter = LiveReporter()
    reporter.start(total_steps=16_000, done_steps=0)
    reporter.row(EPOCH)
    progress = reporter._progress
    assert progress.tasks[0].description == words
    with progress.console.capture() as captured:
        progress.console.print(progress.get_renderable())
    reporter.close()
    assert "…" not in captured.get()
    assert words in captured.get()
    assert "40/16000" in captured.get()


def test_without_stderr_nothing_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert type(choose_reporter(is_main=True, quiet=False)) is SilentReporter
