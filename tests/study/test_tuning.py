"""A whole search: failures, pruning, results, the best recipe, invalid input."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from saccade.config import dump_config, load_config
from saccade.errors import ConfigError, TrainingError
from saccade.runs import RunFolder
from saccade.study.tuning import TuningFolder, join_search, tune
from saccade.study.tuning.space import draw, trial_config
from tests.cli.conftest import Saccade
from tests.study.tiny_search import epochs_of, start_tiny, tiny_search
from tests.train.tiny_runs import tiny

PLANTED = ("optim.name=sgd", "optim.clip_norm=null", "tune.sampler=grid", "optim.warmup_epochs=0")
DIVERGES = 1e37


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuningFolder, dict[str, Any]]:
    """A finished grid search over three learning rates, one of which diverges."""
    out = tmp_path_factory.mktemp("planted") / "study"
    space = f"search.optim.lr=[0.02, {DIVERGES}, 0.1]"
    folder = start_tiny(out, *PLANTED, space, "tune.pruner=none", trials=99)
    return folder, tune(folder)


Planted = tuple[TuningFolder, dict[str, Any]]


def test_failed_trial_is_recorded_and_the_search_continues(planted: Planted) -> None:
    folder, results = planted
    states = {row["params"]["optim.lr"]: row["state"] for row in results["trials"]}
    assert states == {0.02: "complete", DIVERGES: "failed", 0.1: "complete"}
    failed = next(row for row in results["trials"] if row["state"] == "failed")
    assert "not finite" in failed["reason"]
    assert folder.run(failed["number"]).status()["message"] == failed["reason"]
    assert results == json.loads((folder.path / "results.json").read_text())


def test_grid_search_ends_after_all_combinations(planted: Planted) -> None:
    folder, results = planted
    assert len(results["trials"]) == results["trials_wanted"] == 3
    assert results["complete"]
    assert tune(folder) == results


def test_grid_smaller_than_trials_prints_a_note(saccade: Saccade, planted: Planted) -> None:
    code, _, err = saccade("tune", "--resume", "--out", planted[0].path)
    assert code == 0, err
    assert "the grid has 3 points: 3 trials, not 99" in err


def test_value_belongs_to_the_weights_that_would_be_tested(planted: Planted) -> None:
    folder, results = planted
    for row in results["trials"]:
        summary = folder.run(row["number"]).summary()
        assert row["value"] == summary.get("val_accuracy_best")
        assert row["curve"] == [
            epoch["val_accuracy"] for epoch in folder.run(row["number"]).metrics("epoch")
        ]
    done = [row for row in results["trials"] if row["state"] == "complete"]
    assert results["best"]["value"] == max(row["value"] for row in done)


def test_trials_do_not_use_the_test_set(planted: Planted) -> None:
    folder, results = planted
    for row in results["trials"]:
        run = folder.run(row["number"])
        assert run.metrics("test") == []
        assert run.summary().get("test_accuracy") is None
        assert not (run.path / "predictions.npz").exists()


def test_best_recipe_can_be_trained(planted: Planted, saccade: Saccade, tmp_path: Path) -> None:
    folder, results = planted
    best = folder.path / "best.yaml"
    header = [line for line in best.read_text().splitlines() if line.startswith("#")]
    assert any("saccade tune tiny" in line for line in header)
    assert any(f"trial:     {results['best']['number']}," in line for line in header)
    config = load_config(best)
    assert config.optim.lr == results["best"]["params"]["optim.lr"]
    assert config.search == {}
    code, out, err = saccade("train", best, "--out", tmp_path / "run", "--json", "--quiet")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["val_accuracy_best"] == results["best"]["value"]
    assert summary["test_count"] == 61


def test_plots_are_written(planted: Planted) -> None:
    folder, _ = planted
    names = {path.name: path.stat().st_size for path in (folder.path / "plots").iterdir()}
    assert names.keys() == {"history.png", "history.svg"}  # too few trials for importance
    assert min(names.values()) > 5000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.9] * 4, "too many of the complete trials have the same val_accuracy"),
        ([0.95] + [0.9] * 11, "too many of the complete trials have the same val_accuracy"),
        ([0.9, 0.8, 0.7], "fewer than 4 complete trials"),
        ([0.9, 0.8, 0.7, 0.6], None),
    ],
)
def test_importance_needs_enough_different_trials(
    saccade: Saccade, tmp_path: Path, values: list[float], message: str | None
) -> None:
    space = "search.optim.weight_decay={low: 0.0, high: 0.1}"
    folder = start_tiny(tmp_path / "study", space, trials=len(values))
    study, config = folder.load(), folder.base()
    for number, value in enumerate(values):
        trial = study.ask()
        RunFolder.create(folder.run(number).path, trial_config(config, draw(trial, config.search)))
        study.tell(trial, value)
    code, out, err = saccade("tune", "--resume", "--out", folder.path)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("importance")]
    assert ("left out" in line) == (message is not None)
    assert line.endswith(message or "%")
    results = json.loads((folder.path / "results.json").read_text())
    assert (results["importance"] is None) == (message is not None)
    assert results["importance_left_out"] == message


@pytest.mark.parametrize("pruner", ["median", pytest.param("hyperband", marks=pytest.mark.slow)])
def test_pruning_stops_a_trial_early(tmp_path: Path, pruner: str) -> None:
    """At least one trial that cannot learn comes after the one that can."""
    settings = ("tune.startup_trials=1", "tune.warmup_epochs=1", "train.epochs=5")
    space = "search.optim.lr=[0.02, 1e-9, 2e-9]"
    folder = start_tiny(
        tmp_path / "study", *settings, f"tune.pruner={pruner}", space, *PLANTED[2:], trials=3
    )
    results = tune(folder)
    pruned = [row for row in results["trials"] if row["state"] == "pruned"]
    assert pruned
    assert {row["params"]["optim.lr"] for row in pruned} <= {1e-9, 2e-9}
    for row in pruned:
        run = folder.run(row["number"])
        assert row["epochs"] == len(epochs_of(run)) < 5
        assert run.status()["state"] == "stopped"
        assert run.summary() == {}
        assert f"pruned after epoch {row['epochs']} of 5" in row["reason"]


def test_startup_trials_are_not_pruned_by_hyperband(tmp_path: Path) -> None:
    """The search of the test above, with all trials as startup trials."""
    settings = ("tune.startup_trials=3", "tune.warmup_epochs=1", "train.epochs=5")
    space = "search.optim.lr=[0.02, 1e-9, 2e-9]"
    folder = start_tiny(
        tmp_path / "study", *settings, "tune.pruner=hyperband", space, *PLANTED[2:], trials=3
    )
    assert [row["state"] for row in tune(folder)["trials"]] == ["complete"] * 3


def test_trials_of_dead_workers_are_resolved(tmp_path: Path) -> None:
    """One only got a number, one was pruned but not recorded, one kills its workers."""
    folder = start_tiny(tmp_path / "study", "train.epochs=1", trials=4)
    study = folder.load()
    for _ in range(3):
        study.ask()
    stopped = folder.run(1).path
    stopped.mkdir(parents=True)
    RunFolder(stopped).write("status.json", {"state": "stopped", "message": "pruned, then killed"})
    for _ in range(3):
        folder.attempts.begin("trial-0002", 0)
    results = tune(folder)
    found = [(row["state"], row["reason"]) for row in results["trials"]]
    assert found[0] == ("complete", "")
    assert found[1] == ("pruned", "pruned, then killed")
    assert found[2][0] == "failed"
    assert "3 workers in a row died" in found[2][1]
    assert found[3] == ("complete", "")
    assert results["trials"][0]["params"].keys() == {"optim.lr"}


def test_draws_depend_only_on_seed_and_number(tmp_path: Path) -> None:
    """A search in two parts draws the same values as one part, without repetitions."""
    options = ("train.epochs=1", "tune.sampler=random")
    whole = tune(start_tiny(tmp_path / "whole", *options, trials=3))
    tune(start_tiny(tmp_path / "pieces", *options, trials=1))
    joined = join_search(tmp_path / "pieces", tiny_search(*options), trials=3)
    in_pieces = tune(joined)
    drawn = [row["params"]["optim.lr"] for row in whole["trials"]]
    assert len(set(drawn)) == 3
    assert [row["params"]["optim.lr"] for row in in_pieces["trials"]] == drawn
    with pytest.raises(ConfigError, match=r"--trials must be at least 3, .*, got 2"):
        join_search(tmp_path / "pieces", trials=2)
    with pytest.raises(ConfigError, match=r"another train.epochs \(1 -> 2\)"):
        join_search(tmp_path / "pieces", tiny_search("train.epochs=2", "tune.sampler=random"))
    database = "postgresql://here/optuna"
    with pytest.raises(ConfigError, match=r"--storage must be 'journal', .*, got 'postgresql:"):
        join_search(tmp_path / "pieces", storage=database)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "search.optim.lr={low: 0.001, high: 0.2, log: true}",
            "search.optim.lr ({low: 0.001, high: 0.1, log: true} -> "
            "{low: 0.001, high: 0.2, log: true})",
        ),
        ("search.augment.flip=[true]", "search.augment.flip (not searched -> [true])"),
        ("tune.warmup_epochs=1", "tune.warmup_epochs (2 -> 1)"),
    ],
)
def test_changed_search_is_refused_in_recipe_syntax(
    tmp_path: Path, override: str, message: str
) -> None:
    start_tiny(tmp_path / "study", trials=1)
    with pytest.raises(ConfigError) as caught:
        join_search(tmp_path / "study", tiny_search(override))
    assert str(caught.value) == f"--resume: the search was started with another {message}"


def test_search_fails_if_all_trials_fail(tmp_path: Path) -> None:
    space = f"search.optim.lr=[{DIVERGES}]"
    folder = start_tiny(tmp_path / "study", *PLANTED, space, trials=1)
    with pytest.raises(TrainingError, match=r"all 1 trials failed; the first: .*not finite"):
        tune(folder)
    assert json.loads((folder.path / "results.json").read_text())["best"] is None


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny-search.yaml"
    path.write_text(dump_config(tiny_search("train.epochs=1")))
    return path


def test_command_prints_a_table_or_json(saccade: Saccade, recipe: Path, tmp_path: Path) -> None:
    words = ("tune", recipe, "--trials", "2", "--out", tmp_path / "s", "--sampler", "random")
    code, out, err = saccade(*words, "--metric", "val_loss", "--storage", "journal")
    assert code == 0, err
    assert "trial 1: val_loss" in err
    assert sum("complete" in line.split() for line in out.split("importance")[0].splitlines()) == 2
    assert "importance   left out: fewer than 4 complete trials" in out
    assert f"recipe       {tmp_path / 's' / 'best.yaml'}" in out
    code, out, _ = saccade("tune", "--resume", "--out", tmp_path / "s", "--json")
    assert code == 0
    results = json.loads(out)
    assert results["direction"] == "minimize"
    values = [row["value"] for row in results["trials"]]
    assert results["best"]["value"] == min(values)
    study = json.loads((tmp_path / "s" / "study.json").read_text())
    assert (study["kind"], study["metric"], study["storage"]) == ("tune", "val_loss", "journal")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", "0"], "--trials must be at least 1, got 0"),
        ([], "--trials N is needed"),
        (["--trials", "2", "search.optim.lrr=[1]"], "did you mean 'optim.lr'"),
        (["--trials", "2", "optim.lr=1"], "search.optim.lr=[1]"),
        (["--trials", "2", "--metric", "test_accuracy"], "a search must not use the test set"),
        (["--trials", "2", "--metric", "val_accuracyy"], "did you mean 'val_accuracy'"),
        (["--trials", "2", "--sampler", "tpa"], "'tpe', 'random' or 'grid'"),
        (["--trials", "2", "--sampler", "grid"], "range without a step"),
        (["--trials", "2", "--storage", "redis"], "unknown storage 'redis'"),
    ],
)
def test_mistakes(
    saccade: Saccade, recipe: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    code, out, err = saccade("tune", recipe, "--out", tmp_path / "study", *words)
    assert code == 2, err
    assert message in err
    assert not out
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "study").exists()


def test_folders_of_something_else(saccade: Saccade, recipe: Path, tmp_path: Path) -> None:
    def refused(out: Path, message: str, *words: object) -> None:
        code, _, err = saccade("tune", recipe, "--trials", "2", "--out", out, *words)
        assert code == 2, err
        assert message in err
        assert len(err.strip().splitlines()) == 1

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    refused(other, "--out must be a new or empty folder")
    refused(other, "--out must be a new or empty folder", "--resume")
    (other / "study.json").write_text('{"version": 1, "kind": "compare"}')
    refused(other, "already holds a study; add --resume")
    refused(other, "must be of a search, got a 'compare' study", "--resume")
    (other / "study.json").write_text("{")
    refused(other, "study.json' is not valid JSON", "--resume")


def test_storage_that_is_not_a_study(saccade: Saccade, tmp_path: Path) -> None:
    folder = start_tiny(tmp_path / "study", trials=1)
    folder.journal.write_bytes(b"\x00not a study\n" * 99)
    code, _, err = saccade("tune", "--resume", "--out", folder.path)
    assert code == 2
    assert "is not the storage of a study" in err
    folder.journal.unlink()
    code, _, err = saccade("tune", "--resume", "--out", folder.path)
    assert code == 2
    assert "storage is missing" in err


def test_missing_data_and_missing_optuna(
    saccade: Saccade, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("tune", recipe, "--trials", "2", "--out", tmp_path / "study")
    absent = ("data.name=folder", f"data.root={tmp_path / 'absent'}", "data.num_train=null")
    code, _, err = saccade(*words, *absent)
    assert code == 3
    assert "absent" in err
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = saccade(*words)
    assert code == 2
    assert err.strip() == "saccade: saccade tune needs Optuna: pip install 'saccade[tune]'"


def test_recipe_without_search_says_how(saccade: Saccade, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(dump_config(tiny()))
    code, _, err = saccade(
        "tune", tmp_path / "plain.yaml", "--trials", "1", "--out", tmp_path / "s"
    )
    assert code == 2
    assert "there is nothing to search" in err
