"""A killed search resumes without loss or repetition."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from saccade.config import dump_config
from saccade.runs import RunFolder
from saccade.study.tuning import TuningFolder, join_search, tune
from saccade.train.loop import Trainer
from tests.study.tiny_search import epochs_of, start_tiny, tiny_search, work_and_exit
from tests.train.moments import held
from tests.train.tiny_runs import Start
from tests.waiting import PATIENCE_S, wait_until

TRIALS, EPOCHS = 4, 24
LONG = (f"train.epochs={EPOCHS}", "tune.pruner=none", "run.checkpoint_every_steps=5")


def under_way(folder: TuningFolder) -> dict[int, int]:
    """Unfinished trials with the step of their newest checkpoint."""
    runs = {number: folder.run(number) for number in range(TRIALS)}
    begun = {n: run for n, run in runs.items() if run.environment() and not run.is_finished()}
    return {n: run.checkpoints()[-1].step if run.checkpoints() else 0 for n, run in begun.items()}


def both_have_saved(folder: TuningFolder) -> bool:
    return len(steps := under_way(folder)) == 2 and all(steps.values())


def finished(folder: TuningFolder) -> dict[int, float]:
    """Finished trials with their finishing time."""
    runs = {number: folder.run(number) for number in range(TRIALS)}
    return {
        n: (run.path / "summary.json").stat().st_mtime
        for n, run in runs.items()
        if run.is_finished()
    }


def has_saved(trainer: Trainer) -> bool:
    return bool(trainer.run.checkpoints())


def has_saved_and_waits(trainer: Trainer) -> bool:
    """True until the test creates the file `go`."""
    return has_saved(trainer) and not (trainer.run.path.parents[2] / "go").exists()


def has_saved_after_another(trainer: Trainer) -> bool:
    """While a trial is finished: that of the other worker, or this one's first."""
    runs = map(RunFolder, trainer.run.path.parent.iterdir())
    return has_saved(trainer) and any(run.is_finished() for run in runs)


def assert_each_was_run_once(
    folder: TuningFolder, before: dict[int, float], interrupted: dict[int, int]
) -> None:
    trials = folder.load().get_trials()
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * TRIALS
    for number, trial in enumerate(trials):
        run = folder.run(number)
        assert epochs_of(run) == list(range(1, EPOCHS + 1))
        assert sorted(trial.intermediate_values) == epochs_of(run)
        assert trial.value == run.summary()["val_accuracy_best"]
        # A worker that outlives the tool for a moment may take over, and leave, a trial in between.
        resumed_at = [start["step"] for start in run.environment()["resumed"]]
        assert resumed_at == sorted(set(resumed_at))
        assert resumed_at[-1:] == [step for n, step in interrupted.items() if n == number]
    assert before.items() <= finished(folder).items()


def test_two_workers_killed_in_the_middle(tmp_path: Path, start: Start) -> None:
    folder = start_tiny(tmp_path / "study", *LONG, trials=TRIALS)
    workers = [
        start(held, has_saved_after_another, work_and_exit, folder.path, index)
        for index in range(2)
    ]
    wait_until(lambda: finished(folder) and both_have_saved(folder), *workers)
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.join()
    before, interrupted = finished(folder), under_way(folder)
    assert 0 < len(before) < TRIALS
    assert interrupted
    workers = [start(work_and_exit, folder.path, index) for index in range(2)]
    for worker in workers:
        worker.join(PATIENCE_S)
    assert [worker.exitcode for worker in workers] == [0, 0], (tmp_path / "stderr").read_text()
    assert_each_was_run_once(folder, before, interrupted)


def test_successor_of_a_killed_worker_resumes_its_trial(tmp_path: Path, start: Start) -> None:
    folder = start_tiny(tmp_path / "study", *LONG, trials=TRIALS)
    workers = [
        start(held, has_saved_and_waits, work_and_exit, folder.path, index) for index in range(2)
    ]
    wait_until(lambda: both_have_saved(folder), *workers)
    victim, survivor = workers
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    (tmp_path / "go").touch()
    successor = start(work_and_exit, folder.path, 0)
    for worker in (survivor, successor):
        worker.join(PATIENCE_S)
        assert worker.exitcode == 0
    starts = {n: folder.run(n).environment()["resumed"] for n in range(TRIALS)}
    resumed = {n: rows[0]["step"] for n, rows in starts.items() if rows}
    assert len(resumed) == 1
    assert_each_was_run_once(folder, {}, resumed)


def command(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "saccade", "tune", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-search.yaml"
    path.write_text(dump_config(tiny_search(*LONG)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 75), (signal.SIGINT, 130)]
)
def test_tool_with_two_jobs(
    recipe: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Only the process in front gets the signal; its workers save and leave, or see it die."""
    folder = TuningFolder(tmp_path / "study")
    words = (recipe, "--trials", TRIALS, "--jobs", 2, "--out", folder.path, "--resume")
    process = command(*words)
    wait_until(lambda: finished(folder) and any(under_way(folder).values()), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == code
    psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not any(worker.is_running() for worker in workers)
    before, interrupted = finished(folder), under_way(folder)
    assert interrupted
    assert command(*words).wait(PATIENCE_S) == 0
    assert_each_was_run_once(folder, before, interrupted)


def test_signal_stops_a_worker_and_join_goes_on(tmp_path: Path, start: Start) -> None:
    folder = start_tiny(tmp_path / "study", *LONG, "train.epochs=10", trials=1)
    worker = start(held, has_saved, work_and_exit, folder.path)
    wait_until(lambda: any(under_way(folder).values()), worker)
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(PATIENCE_S)
    assert worker.exitcode == 75
    assert folder.run(0).status()["state"] == "preempted"
    assert folder.load().get_trials()[0].state.name == "RUNNING"
    results = tune(join_search(folder.path))
    assert epochs_of(folder.run(0)) == list(range(1, 11))
    assert results["trials"][0]["epochs"] == 10
