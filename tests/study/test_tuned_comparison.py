"""Comparisons that tune every attention alike before their runs."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import ConfigError
from saccade.report import write_report
from saccade.runs import PREDICTIONS
from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Plan
from saccade.study.comparison.fairness import UnfairError
from saccade.study.comparison.status import describe_runs
from tests.cli.conftest import Saccade
from tests.study.tiny_comparison import compare_and_exit, tiny_plan
from tests.train.moments import dying_after
from tests.train.tiny_runs import Start

NAMES, TRIALS, RATE = ("softmax", "performer"), 3, 1e-4
FEATURES = "model.attention_options.num_features"


def tuned_plan(folder: Path, *overrides: str, **options: Any) -> Plan:
    """The tiny plan with a learning rate that is far too low, so that tuning finds a better one."""
    given = {"attentions": NAMES, "trials": TRIALS, "seeds": 1, **options}
    recipe = (
        f"optim.lr={RATE}",
        "search.optim.lr={low: 0.0001, high: 0.03, log: true}",
        *("data.num_train=300", "data.val_fraction=0.2", "train.epochs=3"),
    )
    return tiny_plan(folder, *overrides, recipe=recipe, **given)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    compare(tuned_plan(folder), folder / "study", quiet=True)
    return folder / "study"


def results_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "results.json").read_text()))


def trials_of(out: Path, attention: str) -> list[dict[str, Any]]:
    found = json.loads((out / "tuning" / attention / "results.json").read_text())
    return list(found["trials"])


def test_every_attention_gets_the_same_trials(tuned: Path) -> None:
    first, second = (trials_of(tuned, name) for name in NAMES)
    assert len(first) == len(second) == TRIALS
    assert first[0]["params"] == {"optim.lr": RATE}
    assert second[0]["params"] == {"optim.lr": RATE, FEATURES: None}
    rates = [[row["params"]["optim.lr"] for row in rows] for rows in (first, second)]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) == TRIALS


def test_tuned_runs_have_the_best_values_and_shared_runs_the_recipe(tuned: Path) -> None:
    folder = ComparisonFolder.open(tuned)
    best = max(trials_of(tuned, "softmax"), key=lambda row: row["value"])
    assert best["params"]["optim.lr"] > RATE
    rates = {job.name: folder.run(job).config().optim.lr for job in folder.plan.jobs()}
    assert rates["softmax/seed-0"] == rates["performer/seed-0"] == RATE
    assert rates["tuned/softmax/seed-0"] == best["params"]["optim.lr"]


def test_results_have_both_tables_the_cost_and_what_claims_rest_on(tuned: Path) -> None:
    found = results_of(tuned)
    assert [row["attention"] for row in found["rows"]] == [*NAMES]
    assert [row["setup"] for row in found["tuned"]["rows"]] == [f"tuned/{name}" for name in NAMES]
    assert found["rows"][0]["accuracy"] != found["tuned"]["rows"][0]["accuracy"]
    cost = found["tuning"]
    seconds = sum(row["seconds"] for name in NAMES for row in trials_of(tuned, name))
    assert cost["seconds"] == pytest.approx(seconds, abs=0.05)
    assert cost["share"] == pytest.approx(seconds / (seconds + cost["run_seconds"]), abs=1e-3)
    assert "rest on the tuned table" in found["rests_on"]


def test_comparison_without_tuning_says_so(finished: Path) -> None:
    found = results_of(finished)
    assert found["tuned"] is None
    assert found["tuning"] is None
    assert "rests on one shared setting (learning rate 0.01), tuned for none" in found["rests_on"]


def test_report_has_both_tables(tuned: Path, tmp_path: Path) -> None:
    report = write_report(tuned, tmp_path, formats=["md", "csv"])
    text = (tmp_path / "report.md").read_text()
    assert "Summary with tuned settings" in text
    assert "rest on the tuned table" in text
    assert [(gap.what, gap.reason) for gap in report.left_out] == []
    tables = {name: (tmp_path / "tables" / f"{name}.csv") for name in ("summary", "summary_tuned")}
    assert tables["summary"].read_text() != tables["summary_tuned"].read_text()


def test_status_shows_the_searches(tuned: Path) -> None:
    searches = [row for row in describe_runs(ComparisonFolder.open(tuned)) if row.is_search]
    assert [row.run for row in searches] == [f"tuning/{name}" for name in NAMES]
    assert {(row.state, row.epoch, row.epochs) for row in searches} == {("done", TRIALS, TRIALS)}
    assert searches[0].progress.startswith(f"{TRIALS}/{TRIALS} trials")


def test_no_trial_uses_test_images_and_a_planted_result_is_refused(
    tuned: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(tuned, tmp_path / "study"))
    trials = [path.parent for path in (out / "tuning").rglob("config.yaml")]
    assert len(trials) == TRIALS * len(NAMES)
    assert not [path for path in trials if (path / PREDICTIONS).exists()]
    folder = ComparisonFolder.open(out)
    compare(folder.plan, out, resume=True, quiet=True)
    tested = folder.run(folder.plan.jobs()[0])
    shutil.copy(tested.path / PREDICTIONS, trials[0] / PREDICTIONS)
    with pytest.raises(UnfairError, match="has results on test images"):
        compare(folder.plan, out, resume=True, quiet=True)


@pytest.fixture
def copied(tuned: Path, tmp_path: Path) -> ComparisonFolder:
    return ComparisonFolder.open(shutil.copytree(tuned, tmp_path / "study"))


def refused(folder: ComparisonFolder, told: str) -> None:
    """Neither status nor --resume believes the files."""
    with pytest.raises(ConfigError, match=told):
        compare(folder.plan, folder.path, resume=True, quiet=True)


def test_results_of_another_search_are_refused(copied: ComparisonFolder) -> None:
    first, second = (copied.search(name).path for name in NAMES)
    shutil.copy(second / "results.json", first / "results.json")
    with pytest.raises(ConfigError, match="is of another search; delete it"):
        describe_runs(copied)
    refused(copied, "is of another search; delete it")
    (first / "results.json").unlink()  # which are made again
    found = compare(copied.plan, copied.path, resume=True, quiet=True)
    assert [row["trials"] for row in found["tuning"]["attentions"]] == [TRIALS, TRIALS]


def test_the_search_of_another_attention_is_refused(copied: ComparisonFolder) -> None:
    first, second = (copied.search(name).path for name in NAMES)
    shutil.rmtree(first)
    shutil.copytree(second, first)
    refused(copied, "must be the search of softmax, got that of performer")


def test_settings_that_no_search_found_are_refused(copied: ComparisonFolder) -> None:
    settings = dict(copied.plan.settings or {})
    settings["softmax"] = {"optim.lr": 0.5}
    copied.write("tuned.json", {"settings": settings})
    shutil.rmtree(copied.path / "runs" / "tuned")  # as after a kill before these runs
    refused(ComparisonFolder.open(copied.path), "must have the best settings of the search of")


def test_trials_do_not_depend_on_test_images(tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    compare(tuned_plan(tmp_path, "data.num_test=20"), out, quiet=True)
    for name in NAMES:
        ours, theirs = (trials_of(place, name) for place in (out, tuned))
        assert [row["value"] for row in ours] == [row["value"] for row in theirs]


def test_best_shared_setting_is_not_trained_twice(tmp_path: Path) -> None:
    plan = tuned_plan(tmp_path, trials=1)
    found = compare(plan, tmp_path / "study", quiet=True)
    assert not (tmp_path / "study" / "runs" / "tuned").exists()
    assert [row["setup"] for row in found["tuned"]["rows"]] == [*NAMES]
    assert [row["accuracy"] for row in found["rows"]] == [
        row["accuracy"] for row in found["tuned"]["rows"]
    ]


def test_killed_tuning_resumes_without_loss_or_repetition(
    tuned: Path, start: Start, tmp_path: Path
) -> None:
    plan, out = tuned_plan(tmp_path), tmp_path / "study"
    for steps in (5, 40, 110, 20):  # a trial or run has 24 steps: the last kills hit runs
        process = start(dying_after, steps, compare_and_exit, plan, out)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    compare(plan, out, resume=True, quiet=True)
    ours, theirs = results_of(out), results_of(tuned)
    for name in NAMES:
        mine, other = (trials_of(place, name) for place in (out, tuned))
        assert [(r["params"], r["value"]) for r in mine] == [
            (r["params"], r["value"]) for r in other
        ]
    for key in ("rows", "tuned"):
        pair = [r[key]["rows"] if key == "tuned" else r[key] for r in (ours, theirs)]
        assert [r["accuracies"] for r in pair[0]] == [r["accuracies"] for r in pair[1]]


def test_resume_with_another_number_of_trials_is_refused(tuned: Path) -> None:
    plan = ComparisonFolder.open(tuned).plan
    other = tuned_plan(Path(plan.recipe).parent, trials=TRIALS + 1)
    with pytest.raises(ConfigError, match=r"another trials \(3 -> 4\)"):
        compare(other, tuned, resume=True, quiet=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tune", "0"], "--tune must be at least 1, the number of trials, got 0"),
        (["--tune", "2", "--folds", "3"], "--tune cannot be combined with --folds"),
        (["--tune", "2", "tune.sampler=grid"], "tune.sampler must be tpe or random with --tune"),
        (["--tune", "2", "data.val_fraction=0"], "data.val_fraction must be above 0"),
        (
            ["--tune", "2", "search.optim.lr={low: 0.01, high: 0.1}"],
            "search.optim.lr must include the recipe's own value 0.003",
        ),
    ],
)
def test_settings_that_cannot_be_tuned_alike_are_refused(
    saccade: Saccade, tmp_path: Path, words: list[str], message: str
) -> None:
    out = tmp_path / "study"
    code, printed, err = saccade("compare", "digits-quick", *words, "--out", out)
    assert (code, printed, len(err.strip().splitlines())) == (2, "", 1)
    assert message in err
    assert not out.exists()


def test_dry_run_counts_trials_and_runs_and_writes_nothing(
    saccade: Saccade, tmp_path: Path
) -> None:
    plan = tuned_plan(tmp_path, seeds=2)
    words = [plan.recipe, "--attention", ",".join(NAMES), "--seeds", 2, "--tune", TRIALS]
    out = tmp_path / "study"
    code, printed, err = saccade("compare", *words, "--dry-run", "--json", "--out", out)
    assert code == 0, err
    found = json.loads(printed)
    assert (found["trials"], found["runs"]) == (2 * TRIALS, 8)
    assert found["seconds"] > 0
    assert not out.exists()
