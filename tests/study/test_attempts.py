"""Runs that fail for external reasons are tried again, a limited number of times."""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from saccade.data import load_splits
from saccade.errors import Preempted, SaccadeError, TrainingError
from saccade.runs import RunFolder
from saccade.study.attempts import MAX_ATTEMPTS, Attempts
from saccade.study.comparison import ComparisonFolder, Job, Plan
from saccade.study.comparison.results import collect
from saccade.study.comparison.work import work, write_initial_weights
from saccade.study.tuning import Settings, TuningFolder, join_search, start_search, tune
from saccade.study.tuning.trials import find_value
from saccade.train import train
from saccade.train.loop import Trainer
from tests.study.tiny_comparison import tiny_plan
from tests.study.tiny_search import epochs_of, start_tiny, tiny_search
from tests.train.moments import after_each_step, dying_after, held
from tests.train.test_failures import with_little_memory
from tests.train.tiny_runs import Start
from tests.waiting import PATIENCE_S, wait_until

TWO = {"attentions": ("softmax", "taylorshift"), "seeds": 1}


def begin(plan: Plan, out: Path) -> ComparisonFolder:
    folder = ComparisonFolder.start(out, plan, resume=False)
    write_initial_weights(folder, load_splits(plan.base.data).info)
    return folder


def work_on(out: Path, since: float) -> None:
    """Body of a child process: a worker of a comparison."""
    sys.stderr = (out.parent / "stderr").open("a")
    try:
        work(ComparisonFolder.open(out), since=since)
    except SaccadeError as error:
        sys.exit(error.exit_code)


def left_out(folder: ComparisonFolder) -> dict[str, str]:
    return {gap["run"]: gap["reason"] for gap in collect(folder)["left_out"]}


def test_models_that_do_not_fit_in_memory_fail_without_a_folder(
    start: Start, tmp_path: Path
) -> None:
    """Such runs must not be tried again forever without a message."""
    sizes = ("model.overrides.embed_dim=1024", "model.overrides.mlp_hidden_dim=4096")
    folder = begin(tiny_plan(tmp_path, *sizes, **TWO), tmp_path / "study")
    since = time.time()
    process = start(in_little_memory, tmp_path / "message", folder.path, since)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    reasons = left_out(folder)
    assert reasons.keys() == {"softmax/seed-0", "taylorshift/seed-0"}
    assert all(
        reason.startswith("out of memory before the first step") for reason in reasons.values()
    )
    for job in folder.plan.jobs():
        assert not folder.run(job).exists()
        (attempt,) = folder.attempts.of(job.name.replace("/", "-"))
        assert attempt.end == "finished"


def in_little_memory(told: Path, out: Path, since: float) -> None:
    """Body of a child process: a worker that cannot hold a model's weights."""
    with_little_memory(told, work_on, out, since, mib=24)


def test_run_fails_after_repeated_worker_deaths_and_others_continue(
    start: Start, tmp_path: Path
) -> None:
    folder, since = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study"), time.time()
    first = folder.plan.jobs()[0]
    for _ in range(MAX_ATTEMPTS):
        process = start(dying_after, 0, work_on, folder.path, since)
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL
        assert folder.state(first) == "waiting"
    work(folder, since=since)
    assert left_out(folder) == {first.name: "3 attempts failed: its worker died"}
    assert len(folder.finished()) == 1
    work(folder, since=time.time())  # as --resume does
    assert len(folder.finished()) == 2


@contextmanager
def failing_disk(step: int, times: int, place: str = "") -> Iterator[list[int]]:
    """Make `fsync` fail `times` times from a training step on; yield one entry per failure.

    Only files whose path contains `place` fail.
    """
    failed: list[int] = []
    sync = os.fsync

    def maybe_fail(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if armed and armed[-1] == step and len(failed) < times and place in path:
            failed.append(step)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    armed: list[int] = []
    with pytest.MonkeyPatch.context() as patch, after_each_step(lambda t: armed.append(t.at.step)):
        patch.setattr(os, "fsync", maybe_fail)
        yield failed


def test_run_is_tried_again_after_a_disk_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study")
    with failing_disk(step=4, times=1) as failed:
        work(folder, since=time.time())
    assert failed
    assert len(folder.finished()) == 2
    err = capsys.readouterr().err
    assert "softmax/seed-0: cannot write to" in err
    assert "Input/output error" in err
    assert "(attempt 1 of 3)" in err
    ends = [a.end for a in folder.attempts.of("softmax-seed-0")]
    assert ends == ["io error", "finished"]


def test_run_fails_if_the_disk_always_fails(tmp_path: Path) -> None:
    """The first checkpoint cannot be written, so each attempt begins at the same step."""
    folder = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study")
    with failing_disk(step=2, times=10**6, place="checkpoints"):
        work(folder, since=time.time())
    for reason in left_out(folder).values():
        assert reason.startswith("3 attempts failed: cannot write to")
        assert "Input/output error" in reason
    assert len(left_out(folder)) == 2


def test_comparison_stops_if_nothing_can_be_written(tmp_path: Path) -> None:
    """Not even the attempt can be recorded."""
    folder = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study")
    with failing_disk(step=2, times=10**6), pytest.raises(TrainingError, match="Input/output"):
        work(folder, since=time.time())
    work(folder, since=time.time())
    assert len(folder.finished()) == 2


def best(folder: TuningFolder) -> tuple[int, float]:
    results = json.loads((folder.path / "results.json").read_text())
    assert [row["state"] for row in results["trials"]] == ["complete"] * 2
    return results["best"]["number"], results["best"]["value"]


def test_disk_error_does_not_fail_a_trial(tmp_path: Path) -> None:
    """The trial must not be recorded as failed, which would change the best trial."""
    whole = start_tiny(tmp_path / "whole", trials=2)
    tune(whole)
    lines: list[str] = []
    folder = start_tiny(tmp_path / "study", trials=2)
    with failing_disk(step=4, times=1) as failed:
        tune(folder, say=lines.append)
    assert failed
    assert best(folder) == best(whole)
    (line,) = [line for line in lines if "(attempt 1 of 3)" in line]
    assert "Input/output error" in line


@pytest.mark.parametrize("place", ["checkpoints", ""])
def test_search_stops_without_failed_trials_if_the_disk_always_fails(
    tmp_path: Path, place: str
) -> None:
    folder = start_tiny(tmp_path / "study", trials=1)
    error = pytest.raises(TrainingError, match=r"Input/output error; .*go on with --resume")
    with failing_disk(step=2, times=10**6, place=place), error:
        tune(folder)
    assert folder.load().get_trials()[0].state.name == "RUNNING"
    assert tune(join_search(folder.path))["trials"][0]["state"] == "complete"


@pytest.mark.parametrize("metric", ["val_accuracy", "val_loss"])
def test_trial_with_lost_metrics_keeps_its_value(tmp_path: Path, metric: str, start: Start) -> None:
    """Resuming such a trial must not raise."""

    def search(name: str) -> TuningFolder:
        return start_search(tmp_path / name, tiny_search(), Settings("tiny", 1, metric=metric))

    whole, folder = search("whole"), search("study")
    expected = tune(whole)["best"]["value"]
    process = start(dying_after, 20, tune, folder)  # of 24, in the third epoch
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    for file in folder.run(0).path.rglob("metrics.jsonl"):
        file.write_text("")
    results = tune(join_search(folder.path))
    assert results["best"]["value"] == expected
    assert epochs_of(folder.run(0))[-1] == 3


@pytest.mark.parametrize("metric", ["val_accuracy", "val_loss"])
def test_trial_value_comes_from_metrics_study_or_summary(tmp_path: Path, metric: str) -> None:
    folder = start_search(tmp_path / "study", tiny_search(), Settings("tiny", 2, metric=metric))
    reported, unreported = folder.load().ask(), folder.load().ask()
    summary = {"selected": "best", "best_epoch": 2, "epochs": 3, "val_accuracy_best": 0.5}
    reported.report(0.25, 2)
    assert find_value(reported, folder.run(0), metric, summary) == 0.25
    only = find_value(unreported, folder.run(1), metric, summary)
    assert only == (0.5 if metric == "val_accuracy" else None)
    folder.run(1).path.mkdir(parents=True)
    folder.run(1).append_metrics({"kind": "epoch", "epoch": 2, metric: 0.75})
    assert find_value(unreported, folder.run(1), metric, summary) == 0.75


def at_step_five(trainer: Trainer) -> bool:
    """True at step 5 until the test creates the file `go`."""
    return trainer.at.step == 5 and not (trainer.run.path.parents[3] / "go").exists()


def test_suspended_worker_does_not_overwrite_the_new_owners_run(
    start: Start, tmp_path: Path
) -> None:
    """The lock files are deleted to simulate a file system whose locks machines do not share."""
    folder = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study")
    job = Job("softmax", 0)
    run = folder.run(job)
    sleeper = start(held, at_step_five, work_on, folder.path, 0.0)
    wait_until(lambda: run.newest_step() == 4, sleeper)
    (run.path / ".lock").unlink()
    folder.lock(job.short_name).unlink()
    summary = train(
        folder.plan.config(job), run.path, resume=True, initial=folder.initial(0), quiet=True
    )
    files = ("status.json", "metrics.jsonl", "summary.json", "environment.json")
    before = {name: (run.path / name).read_bytes() for name in files}
    (tmp_path / "go").touch()
    sleeper.join(PATIENCE_S)
    assert {name: (run.path / name).read_bytes() for name in files} == before
    assert run.status()["state"] == "finished"
    assert run.summary() == summary
    assert folder.attempts.of("softmax-seed-0") == []


def test_run_locked_by_another_process_is_left_alone(start: Start, tmp_path: Path) -> None:
    """The lock of the run's folder is enough if the lock of its worker was not seen."""
    folder = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study")
    run = folder.run(Job("softmax", 0))
    owner = start(held, at_step_five, work_on, folder.path, 0.0)
    wait_until(lambda: run.newest_step() == 4, owner)
    folder.lock(Job("softmax", 0).short_name).unlink()
    other = start(work_on, folder.path, 0.0)
    wait_until(lambda: folder.state(Job("taylorshift", 0)) == "finished", owner, other)
    (tmp_path / "go").touch()
    for process in (owner, other):
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert not left_out(folder)
    assert [row["epoch"] for row in run.metrics("epoch")] == [1, 2]


def test_attempts_are_limited_if_a_failure_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no memory is left for `status.json`; a new worker follows each that ends so."""
    folder, since = begin(tiny_plan(tmp_path, **TWO), tmp_path / "study"), time.time()
    job = folder.plan.jobs()[0]

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("saccade.study.comparison.work.train", fail)
    monkeypatch.setattr(ComparisonFolder, "note_failure", fail)
    for _ in range(MAX_ATTEMPTS + 2):
        with pytest.raises(MemoryError):
            work(folder, since=since, unit=job.name)
    assert len(folder.attempts.of(job.short_name)) == MAX_ATTEMPTS


def test_interrupted_attempts_do_not_count_as_failures(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "attempts")
    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(Preempted), attempts.ending(attempts.begin("run", 0)):
            raise Preempted
    assert attempts.failures("run", 0) == []
    for _ in range(2):
        with pytest.raises(OSError, match="5"), attempts.ending(attempts.begin("run", 4)):
            raise OSError(errno.EIO, "5")
    assert [a.end for a in attempts.failures("run", 4)] == ["io error"] * 2
    assert attempts.failures("run", 6) == []
    assert attempts.failures("run", 4, since=time.time()) == []
    (tmp_path / "attempts" / "run.7.json").write_text("garbage")
    assert len(attempts.of("run")) == MAX_ATTEMPTS + 3
    assert RunFolder(tmp_path).newest_step() == 0
