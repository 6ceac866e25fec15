"""What CI runs on a real Slurm: jobs, a requeue and a time limit, in a few minutes."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from saccade.study import compare
from saccade.study.comparison import ComparisonFolder
from saccade.study.slurm_queue import log_of
from tests.cli.conftest import Saccade
from tests.cluster.commands import LONG, epoch_of, jobs_of, start_comparison, starts
from tests.cluster.conftest import Cluster
from tests.study.test_comparison_kills import assert_nothing_twice_or_lost
from tests.study.tiny_comparison import tiny_plan

LIMITED, REQUEUED = "softmax/seed-0", "taylor/seed-0"


def status_of(process: psutil.Process) -> dict[str, str]:
    """Linux's description of a process; empty if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def suspend(cluster: Cluster, process: psutil.Process) -> None:
    """Suspend a process, and wait until it is: it goes on for some milliseconds."""
    process.suspend()
    cluster.wait(lambda: status_of(process)["State"].startswith("T"))


def was_told(process: psutil.Process, number: signal.Signals) -> bool:
    """True if a suspended process has a pending signal, or goes on: Slurm sends SIGCONT too."""
    status = status_of(process)
    if not status or not status["State"].startswith("T"):
        return True
    return bool(int(status["ShdPnd"], 16) >> (number - 1) & 1)


def test_jobs_at_their_time_limit_and_requeued_ones_end_with_the_result_made_here(
    cluster: Cluster, saccade: Saccade, tmp_path: Path
) -> None:
    """A run is suspended until Slurm announces the limit, which it does up to 30 s early.

    On a busy machine a job needs most of a minute to begin; its successor has as long as it takes.
    """
    plan = tiny_plan(tmp_path, recipe=LONG, attentions=("softmax", "taylor"), seeds=1)
    out, here = tmp_path / "study", tmp_path / "here"
    command = start_comparison(plan, out, "--slurm", "time=2,signal=USR1@1")
    cluster.wait(lambda: (out / "study.json").exists() and jobs_of(out))
    folder, jobs = ComparisonFolder.open(out), jobs_of(out)
    workers: list[psutil.Process] = []

    def give_time(name: str) -> None:
        cluster.command("scontrol", "update", f"JobId={jobs[name]}", "TimeLimit=30")

    def stop_at_the_limit() -> None:
        workers.append(psutil.Process(folder.attempts.of("softmax-seed-0")[-1].pid))
        suspend(cluster, workers[0])

    def requeue() -> None:
        give_time(REQUEUED)
        cluster.command("scontrol", "requeue", jobs[REQUEUED])

    to_do: dict[str, Callable[[], None]] = {LIMITED: stop_at_the_limit, REQUEUED: requeue}
    while to_do:
        cluster.wait(lambda: any(epoch_of(folder, name) >= 2 for name in to_do))
        for name in [name for name in to_do if epoch_of(folder, name) >= 2]:
            to_do.pop(name)()
    code, printed, _ = saccade("compare", "status", out, "--json")
    states = {run["run"]: run["state"] for run in json.loads(printed)}
    assert code == 0
    assert states[LIMITED] == "running"
    cluster.wait(lambda: was_told(workers[0], signal.SIGUSR1))
    give_time(LIMITED)
    with suppress(psutil.NoSuchProcess):
        workers[0].resume()
    compare(plan, here, quiet=True)
    code, _, err = command.end()
    assert code == 0, err
    assert jobs_of(out).items() >= jobs.items()  # none was submitted again
    for name, steps in starts(out).items():
        assert len(steps) >= 2, name
        assert steps[1] > 0, name
        *stopped, last = (a.end for a in folder.attempts.of(name.replace("/", "-")))
        assert ({*stopped}, last) == ({"stopped"}, "finished"), name
    log = log_of(out, jobs[LIMITED]).read_text()
    assert f"saved before the time limit; queueing job {jobs[LIMITED]} again" in log
    assert_nothing_twice_or_lost(out, plan, here)
