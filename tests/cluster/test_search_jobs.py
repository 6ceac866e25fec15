"""Searches with four jobs of a real Slurm, stored in a journal and in a real PostgreSQL."""

from pathlib import Path

import pytest

from saccade.config import dump_config
from saccade.study.tuning import TuningFolder
from tests.cli.conftest import Saccade
from tests.cluster.commands import Command, jobs_of
from tests.cluster.conftest import Cluster
from tests.study.tiny_search import epochs_of, tiny_search

TRIALS, EPOCHS, JOBS = 10, 12, 4


def start_search(folder: Path, storage: str) -> tuple[Command, TuningFolder]:
    recipe = folder / "tiny-search.yaml"
    changes = (f"train.epochs={EPOCHS}", "tune.pruner=none", "run.checkpoint_every_steps=5")
    recipe.write_text(dump_config(tiny_search(*changes)))
    out = folder / "study"
    words = ["tune", recipe, "--trials", TRIALS, "--jobs", JOBS, "--storage", storage]
    return Command(*words, "--launcher", "slurm", "--out", out), TuningFolder(out)


def search_with_a_kill(cluster: Cluster, folder: Path, storage: str) -> None:
    """Kill a job in the middle of a trial: every trial is run once, by several workers."""
    command, search = start_search(folder, storage)
    cluster.wait(lambda: len(jobs_of(search.path)) == JOBS)
    cluster.wait(lambda: search.run(0).exists() and len(epochs_of(search.run(0))) >= 2)
    (first,) = search.attempts.of("trial-0000")
    job = first.worker.split("-")[1]
    cluster.command("scancel", "--signal=KILL", job)
    code, out, err = command.end()
    assert code == 0, err
    assert f"best         trial {_best(search)}" in out
    trials = search.load().get_trials()
    assert [trial.number for trial in trials] == [*range(TRIALS)]
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    for trial in trials:
        assert epochs_of(search.run(trial.number)) == [*range(1, EPOCHS + 1)]
        assert [*trial.intermediate_values] == [*range(1, EPOCHS + 1)]
        resumed = search.run(trial.number).environment()["resumed"]
        assert len(resumed) == (trial.number == 0)
    assert len({trial.user_attrs["worker"] for trial in trials}) > 1


def _best(search: TuningFolder) -> int:
    return search.load().best_trial.number


def test_four_jobs_share_a_journal(cluster: Cluster, tmp_path: Path) -> None:
    search_with_a_kill(cluster, tmp_path, "journal")


def test_four_jobs_share_a_database(cluster: Cluster, tmp_path: Path, database: str) -> None:
    search_with_a_kill(cluster, tmp_path, database)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://tester:secret@127.0.0.1/x", "--storage must not contain a password"),
        ("postgresql://tester@127.0.0.1:1/x", "onnection refused"),
    ],
)
def test_databases_that_cannot_be_used(
    saccade: Saccade, tmp_path: Path, url: str, message: str
) -> None:
    recipe = tmp_path / "tiny-search.yaml"
    recipe.write_text(dump_config(tiny_search()))
    code, _, err = saccade(
        *("tune", recipe, "--trials", 1, "--out", tmp_path / "s", "--storage", url)
    )
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists()
