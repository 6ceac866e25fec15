"""Launchers and the status of runs, as far as they need no Slurm."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from saccade.errors import ConfigError, RunLockedError, UnknownNameError
from saccade.study.comparison import ComparisonFolder
from saccade.study.comparison.plan import Job as Run
from saccade.study.comparison.status import describe_runs
from saccade.study.launchers import Task, choose_launcher, local, only_launcher, parse_options
from saccade.study.slurm import SlurmLauncher
from saccade.study.slurm_queue import Job, find_jobs
from saccade.study.tuning.storage import cut_torn_line
from tests.cli.conftest import Saccade
from tests.study.tiny_search import start_tiny


def test_options_of_sbatch() -> None:
    asked = ["partition=gpu, gpus_per_node=1,time=02:00:00", "--nodelist=n[1,3-4],exclusive"]
    assert parse_options(asked) == {
        "partition": "gpu",
        "gpus-per-node": "1",
        "time": "02:00:00",
        "nodelist": "n[1,3-4]",
        "exclusive": True,
    }


@pytest.mark.parametrize("text", ["nodes=2", "ntasks-per-node=2", "array=1-3", "=gpu", ","])
def test_options_that_saccade_decides_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--slurm"):
        parse_options([text])


def test_unknown_launchers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_launcher("local") is local
    with pytest.raises(UnknownNameError, match=r"unknown launcher 'slrum': did you mean 'slurm'"):
        choose_launcher("slrum")
    with pytest.raises(ConfigError, match="--slurm needs --launcher slurm"):
        choose_launcher("local", ["partition=gpu"])
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="needs Slurm: there is no sbatch here"):
        choose_launcher("slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'saccade\[cluster\]'"):
        choose_launcher("slurm")


def test_only_one_launcher_works_on_a_study(tmp_path: Path) -> None:
    with (
        only_launcher(tmp_path),
        pytest.raises(RunLockedError, match="another process works on this study"),
        only_launcher(tmp_path),
    ):
        raise AssertionError
    with only_launcher(tmp_path):
        pass


@pytest.mark.parametrize(
    ("state", "code", "began", "is_alive", "is_lost"),
    [
        ("COMPLETED", 0, True, True, False),
        ("FAILED", 137, True, True, True),
        ("FAILED", 137, False, True, False),  # after three jobs that began nothing
        ("FAILED", 3, True, True, False),  # it printed why
        ("NODE_FAIL", 0, True, False, True),
        ("TIMEOUT", 0, True, False, True),
        ("PREEMPTED", 75, True, False, True),
        ("CANCELLED", 0, True, False, False),
    ],
)
def test_lost_jobs_are_submitted_again(
    tmp_path: Path, state: str, code: int, began: bool, is_alive: bool, is_lost: bool
) -> None:
    task = Task("module", tmp_path, 0.0, ["run"], None, here=lambda: None)
    launcher, job = SlurmLauncher({}), Job("12_3", state, code)
    launcher._tries["run"] = 3
    if began:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SACCADE_WORKER_ID", f"{job.worker}abc")
            task.attempts.begin("run", 0)
    assert launcher._is_lost(task, "run", job, is_alive=is_alive) == is_lost


def test_job_that_slurm_calls_cancelled_is_lost_while_others_are_alive(tmp_path: Path) -> None:
    task = Task("module", tmp_path, 0.0, ["run"], None, here=lambda: None)
    launcher, job = SlurmLauncher({}), Job("12", "CANCELLED")
    assert launcher._is_lost(task, "run", job, is_alive=True)
    launcher._tries["run"] = 3
    assert not launcher._is_lost(task, "run", job, is_alive=True)


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


def test_status_tells_what_each_run_does(saccade: Saccade, copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    waiting, failed, running, dead = (
        Run(name, seed) for seed in (0, 1) for name in ("softmax", "performer")
    )
    for run in (waiting, failed, running, dead):
        shutil.rmtree(folder.run(run).path)
    folder.note_failure(failed, "loss is [nan] at step 7")
    for run, pid in ((running, os.getpid()), (dead, 2**22 + 1)):
        files = folder.run(run)
        files.path.mkdir()
        files.write("status.json", {"state": "running", "epoch": 1, "updated": time.time()})
        files.append_metrics({"kind": "epoch", "step": 9, "epoch": 1, "seconds": 600.0})
        attempt = folder.attempts.begin(run.short_name, 0)
        text = attempt.path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {pid}')
        attempt.path.write_text(text)
    states = {run.run: run for run in describe_runs(folder)}
    assert {name: run.state for name, run in states.items()} == {
        "softmax/seed-0": "waiting",
        "performer/seed-0": "failed",
        "softmax/seed-1": "running",
        "performer/seed-1": "interrupted",
        "taylorshift/seed-0": "done",
        "taylorshift/seed-1": "done",
    }
    assert states["performer/seed-1"].reason == "its process is gone; --resume continues it"
    assert states["softmax/seed-1"].eta_s == pytest.approx(600, abs=60)
    code, out, _ = saccade("compare", "status", copied)
    assert code == 0
    assert "loss is [nan] at step 7" in " ".join(out.split())
    assert "10 min left" in out
    assert "2 done, 1 running, 1 waiting, 1 interrupted, 1 failed" in " ".join(out.split())
    code, out, _ = saccade("compare", "status", copied, "--json")
    assert [run["state"] for run in json.loads(out)].count("done") == 2


def test_status_watches_until_nothing_runs(saccade: Saccade, copied: Path) -> None:
    code, out, err = saccade("compare", "status", copied, "--watch")
    assert (code, err) == (0, "")
    assert out.count("6 done") == 1
    code, out, err = saccade("compare", "status", copied.parent)
    assert (code, out) == (2, "")
    assert "is not a comparison: it has no study.json" in err


def test_no_jobs_are_known_without_slurm(copied: Path) -> None:
    assert find_jobs(copied) == {}


def test_jobs_cannot_be_asked_for_without_slurm(
    saccade: Saccade, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study of a cluster that was copied to another machine: not resumed before the user says."""
    monkeypatch.setenv("PATH", "/nonexistent")
    (copied / "slurm").mkdir()
    (copied / "slurm" / "jobs.json").write_text('{"softmax/seed-0": "12_0"}')
    (copied / "runs" / "softmax" / "seed-0" / "status.json").unlink()
    code, _, err = saccade("compare", "--resume", "--out", copied)
    assert code == 2
    assert "squeue is not installed here" in err
    assert f"delete '{copied / 'slurm'}' if none is left" in err
    (run, *_) = describe_runs(ComparisonFolder.open(copied))
    assert (run.run, run.state) == ("softmax/seed-0", "waiting")
    assert run.reason == "Slurm does not answer, so this may be out of date"


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that knows no job any more, and attempts of its job 12_0."""
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SACCADE_WORKER_ID", "slurm-12_0-abc")


@pytest.mark.usefixtures("forgetful")
def test_forgotten_job_of_a_finished_run_is_not_submitted_again(tmp_path: Path) -> None:
    task = Task("module", tmp_path, 0.0, ["run"], None, here=lambda: None)
    with task.attempts.ending(task.attempts.begin("run", 0)):
        pass
    jobs = {"run": "12_0"}
    assert SlurmLauncher({})._look(task, jobs) == [0]
    assert jobs == {}


@pytest.mark.usefixtures("forgetful")
def test_status_of_a_run_whose_job_is_forgotten(copied: Path) -> None:
    """It does not run, also if the process of its last attempt was on another machine."""
    folder = ComparisonFolder.open(copied)
    (run, *_) = folder.plan.jobs()
    (copied / "slurm").mkdir()
    (copied / "slurm" / "jobs.json").write_text(json.dumps({run.name: "12_0"}))
    folder.run(run).write("status.json", {"state": "running", "epoch": 1, "updated": time.time()})
    attempt = folder.attempts.begin(run.short_name, 0)
    attempt.path.write_text(attempt.path.read_text().replace(attempt.host, "elsewhere"))
    (status, *_) = describe_runs(folder)
    assert (status.run, status.job, status.state) == (run.name, "12_0", "interrupted")
    assert status.reason == "its process is gone; --resume continues it"


def test_torn_line_of_a_journal_is_cut(tmp_path: Path) -> None:
    """Optuna appends to such a line, and can then never read the journal again."""
    folder = start_tiny(tmp_path / "study", trials=2)
    whole = folder.journal.read_bytes()
    folder.journal.write_bytes(whole + b'{"op_code":4,"worker')
    cut_torn_line(folder.journal)
    assert folder.journal.read_bytes() == whole
    assert [t.state.name for t in folder.load().get_trials()] == ["WAITING"] * 2
