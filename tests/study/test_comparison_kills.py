"""Comparisons in real processes that are killed, are asked to stop, or share the work."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.data import load_splits
from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Plan
from saccade.study.comparison.work import write_initial_weights
from saccade.train.loop import Trainer
from tests.study.tiny_comparison import compare_and_exit, end_states, work_and_exit
from tests.train.moments import dying_after, held
from tests.train.tiny_runs import Start
from tests.waiting import PATIENCE_S, wait_until


def epochs(out: Path) -> int:
    """Number of epochs in the metrics of all runs."""
    files = (out / "runs").glob("*/seed-*/metrics.jsonl")
    return sum(file.read_text().count('"kind": "epoch"') for file in files)


def finished_at(out: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (out / "runs").glob("*/seed-*/summary.json")}


def assert_nothing_twice_or_lost(out: Path, plan: Plan, whole: Path) -> None:
    """Check that every run has each epoch once and the same results as without a kill."""
    folder = ComparisonFolder.open(out)
    for job in plan.jobs():
        rows = folder.run(job).metrics("epoch")
        assert [row["epoch"] for row in rows] == [*range(1, plan.base.train.epochs + 1)]
    assert end_states(out) == end_states(whole)
    ours, theirs = (json.loads((o / "results.json").read_text()) for o in (out, whole))
    assert ours["complete"]
    for mine, other in zip(ours["rows"], theirs["rows"], strict=True):
        assert mine["accuracies"] == other["accuracies"]
        assert mine["p_corrected"] == other["p_corrected"]


def test_killed_comparison_resumes_without_loss_or_repetition(
    finished: Path, plan: Plan, start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    done: dict[Path, int] = {}
    for steps in (25, 14, 20):  # a run has 18 steps: the first and last kill hit a second run
        process = start(dying_after, steps, compare_and_exit, plan, out)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert finished_at(out).items() >= done.items()
        done = finished_at(out)
    assert done
    compare(plan, out, resume=True, quiet=True)
    assert finished_at(out).items() >= done.items()
    assert_nothing_twice_or_lost(out, plan, finished)


def compare_with_small_files(plan: Plan, out: Path) -> None:
    """Body of a child process whose file size is limited, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    compare_and_exit(plan, out)


def test_initial_weights_on_a_full_disk_exit_with_code_4(
    plan: Plan, start: Start, tmp_path: Path, finished: Path
) -> None:
    out = tmp_path / "study"
    largest = max(path.stat().st_size for path in (finished / "initial").iterdir())
    assert largest > 10_000
    process = start(compare_with_small_files, plan, out)
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    assert not [*(out / "initial").iterdir()]


def is_alone(trainer: Trainer) -> bool:
    """True if no other run has begun yet."""
    return len([*trainer.run.path.parents[1].glob("*/*/environment.json")]) < 2


def test_two_workers_share_the_runs(plan: Plan, start: Start, tmp_path: Path) -> None:
    folder = ComparisonFolder.start(tmp_path / "study", plan, resume=False)
    write_initial_weights(folder, load_splits(plan.base.data).info)
    workers = [start(held, is_alone, work_and_exit, folder.path) for _ in range(2)]
    for worker in workers:
        worker.join(PATIENCE_S)
        assert worker.exitcode == 0
    runs = [folder.run(job) for job in plan.jobs()]
    assert {run.status()["pid"] for run in runs} == {worker.pid for worker in workers}
    assert [run.environment()["resumed"] for run in runs] == [[]] * len(runs)


def is_in_the_second_run(trainer: Trainer) -> bool:
    """True in the second epoch of a run that is not the first."""
    return trainer.at.epoch == 1 and any(trainer.run.path.parents[1].glob("*/*/summary.json"))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 75), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_signals_save_and_show_the_results_so_far(
    plan: Plan, start: Start, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "study"
    process = start(held, is_in_the_second_run, compare_and_exit, plan, out)
    wait_until(lambda: epochs(out) > 2, process)
    os.kill(process.pid, number)
    process.join(PATIENCE_S)
    assert process.exitcode == code
    results = json.loads((out / "results.json").read_text())
    assert not results["complete"]
    assert len(results["left_out"]) == len(plan.jobs()) - len(finished_at(out)) > 0
    assert "not finished: preempted" in [gap["reason"] for gap in results["left_out"]]


def owners(out: Path) -> list[int]:
    """Ids of the processes that are training a run."""
    attempts = ComparisonFolder.open(out).attempts.made_by("")
    return [attempt.pid for attempt in attempts if attempt.end == "under way"]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["all", "main", "worker"])
def test_resume_after_a_kill_with_two_workers(
    finished: Path, plan: Plan, tmp_path: Path, victims: str
) -> None:
    out = tmp_path / "study"
    words = ["compare", plan.recipe, "--attention", ",".join(plan.attentions), "--seeds", "2"]
    command = [sys.executable, "-m", "saccade", *words, "--jobs", "2", "--resume", "--out", out]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: epochs(out) >= 5 and len(owners(out)) == 2, process)
    workers = owners(out)
    assert len(workers) == 2
    done = finished_at(out)
    if victims != "worker":
        process.kill()
    for pid in workers if victims == "all" else workers[:1] if victims == "worker" else []:
        kill(pid)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (0 if victims == "worker" else -signal.SIGKILL)
    subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    assert finished_at(out).items() >= done.items()
    assert_nothing_twice_or_lost(out, plan, finished)
    for job in plan.jobs():
        written = ComparisonFolder.open(out).run(job).environment()["command"]
        assert written == ["saccade", *map(str, command[3:])]


@pytest.mark.slow
def test_compare_prints_the_table_so_far_on_sigterm(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "study"
    words = ["compare", plan.recipe, "--attention", ",".join(plan.attentions), "--jobs", "2"]
    command = [sys.executable, "-m", "saccade", *words, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: len(finished_at(out)) >= 3, process)
    process.send_signal(signal.SIGTERM)
    out_text, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75
    assert "softmax" in out_text
    assert "runs done; go on with --resume" in err.splitlines()[-1]
