"""Comparisons as jobs of a real Slurm: requeued, killed, preempted, out of time, and joined."""

import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Plan
from tests.cli.conftest import Saccade
from tests.cluster.commands import LONG, jobs_of, start_comparison, starts, wait_for_epoch
from tests.cluster.conftest import Cluster
from tests.study.test_comparison_kills import assert_nothing_twice_or_lost, finished_at
from tests.study.tiny_comparison import tiny_plan


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Three attentions, two seeds; the recipe has all settings, so that the command can have it."""
    folder = tmp_path_factory.mktemp("recipe")
    return tiny_plan(folder, recipe=LONG)


@pytest.fixture(scope="module")
def made_here(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison of the plan, made in this process."""
    out = tmp_path_factory.mktemp("here") / "study"
    compare(plan, out, quiet=True)
    return out


def kill_the_job_of(out: Path, name: str) -> None:
    """Kill the process that Slurm started; its worker ends with it."""
    attempt = ComparisonFolder.open(out).attempts.of(name)[-1]
    assert attempt.end == "under way"
    psutil.Process(attempt.pid).parent().kill()


def test_disturbed_jobs_end_with_the_result_made_here(
    cluster: Cluster, plan: Plan, made_here: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    command = start_comparison(plan, out, "--jobs", 3)
    requeued = ["softmax/seed-0", "taylorshift/seed-0", "performer/seed-0"]
    for name in requeued:
        cluster.command("scontrol", "requeue", wait_for_epoch(cluster, out, name, 3))
    cluster.command("scancel", "--signal=KILL", wait_for_epoch(cluster, out, "softmax/seed-1", 3))
    wait_for_epoch(cluster, out, "taylorshift/seed-1", 3)
    kill_the_job_of(out, "taylorshift-seed-1")
    cluster.restart_controller(pause_s=3)
    code, _, err = command.end()
    assert code == 0, err
    for name, state in (("softmax", "CANCELLED"), ("taylorshift", "FAILED")):
        (line,) = (line for line in err.splitlines() if line.startswith(f"{name}/seed-1: Slurm's"))
        assert f"ended as {state} with exit code" in line
        assert line.endswith("queueing it again")
    assert sum(line.startswith("submitted") for line in err.splitlines()) == 2  # runs, measures
    assert_nothing_twice_or_lost(out, plan, made_here)
    begun = starts(out)
    disturbed = {name: steps for name, steps in begun.items() if len(steps) > 1}
    assert disturbed.keys() == {*requeued, "softmax/seed-1", "taylorshift/seed-1"}
    assert all(len(steps) == 2 and steps[1] > 0 for steps in disturbed.values())


def test_preempted_job_saves_and_goes_on(
    cluster: Cluster, plan: Plan, made_here: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    command = start_comparison(plan, out, "--jobs", 2)
    wait_for_epoch(cluster, out, "softmax/seed-0", 3)
    urgent = ("sbatch", "-p", "urgent", "-N2", "--exclusive", "-o", tmp_path / "urgent")
    cluster.command(*urgent, "--wrap", "sleep 2")
    code, _, err = command.end()
    assert code == 0, err
    assert_nothing_twice_or_lost(out, plan, made_here)
    assert len(starts(out)["softmax/seed-0"]) == 2
    ends = [a.end for a in ComparisonFolder.open(out).attempts.of("softmax-seed-0")]
    assert ends == ["stopped", "finished"]


def test_interrupted_launcher_leaves_its_jobs_to_the_next(
    cluster: Cluster, saccade: Saccade, plan: Plan, made_here: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    command = start_comparison(plan, out, "--jobs", 2)
    wait_for_epoch(cluster, out, "softmax/seed-0", 3)
    command.process.send_signal(signal.SIGINT)
    code, _, err = command.end()
    jobs = jobs_of(out)
    main = jobs["softmax/seed-0"].partition("_")[0]
    assert code == 130
    assert "the jobs go on in Slurm: --resume --launcher slurm joins them" in err
    assert f"scancel {main} cancels them" in err.splitlines()[-1]
    code, _, err = saccade("compare", "--resume", "--out", out)
    assert code == 2
    assert "--launcher must be slurm while jobs of this study are in Slurm's queue" in err
    code, printed, _ = saccade("compare", "status", out, "--json")
    states = {run["run"]: run["state"] for run in json.loads(printed)}
    assert states["performer/seed-1"] == "queued"
    assert states["softmax/seed-0"] in ("running", "done")
    done = finished_at(out)
    code, _, err = start_comparison(plan, out).end()
    assert code == 0, err
    assert "joined" in err
    assert {name: jobs_of(out)[name] for name in jobs} == jobs  # none was submitted twice
    assert finished_at(out).items() >= done.items()
    assert_nothing_twice_or_lost(out, plan, made_here)
    assert {len(steps) for steps in starts(out).values()} == {1}


def test_ctrl_c_while_jobs_are_submitted_loses_none(
    cluster: Cluster, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends Ctrl-C to `sbatch` too, here a slow one."""
    slow, real = tmp_path / "sbatch", shutil.which("sbatch")
    slow.write_text(f'#!/bin/sh\ntouch {tmp_path}/begun\nsleep 5\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = start_comparison(plan, tmp_path / "study", "--jobs", 2)
    cluster.wait((tmp_path / "begun").exists)
    launcher = psutil.Process(command.process.pid)
    for process in (*launcher.children(recursive=True), launcher):
        process.send_signal(signal.SIGINT)
    code, _, err = command.end()
    assert code == 130, err
    jobs = jobs_of(tmp_path / "study")
    assert jobs.keys() == {job.name for job in plan.jobs()}
    assert set(jobs.values()) <= cluster.jobs().keys()
    assert f"scancel {jobs['softmax/seed-0'].partition('_')[0]} cancels them" in err


def test_resume_submits_only_what_is_missing(
    cluster: Cluster, plan: Plan, made_here: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    command = start_comparison(plan, out, "--jobs", 2)
    cluster.wait(lambda: out.exists() and finished_at(out))
    cluster.command("scancel", next(iter(jobs_of(out).values())).partition("_")[0])
    code, printed, err = command.end()
    assert code == 4
    assert "ended as CANCELLED" in err
    assert "runs are missing; go on with --resume" in err.splitlines()[-1]
    assert "softmax" in printed  # the table so far
    done = finished_at(out)
    code, _, err = start_comparison(plan, out).end()
    assert code == 0, err
    assert f"submitted {len(plan.jobs()) - len(done)} job(s)" in err
    assert_nothing_twice_or_lost(out, plan, made_here)
