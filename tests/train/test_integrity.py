"""Files of a finished run are checked against its manifest: damage is reported or repaired."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saccade.errors import ConfigError, DamagedRunError
from saccade.report import write_report
from saccade.runs import RunFolder
from saccade.study import compare
from saccade.train import train
from tests.cli.conftest import Saccade, saccade
from tests.study.tiny_comparison import tiny_plan
from tests.train.tiny_runs import final_state, forget_manifest, tiny

__all__ = ["saccade"]

TIMED = {"peak_memory_shared", "seconds", "img_per_s", "seconds_per_epoch", "peak_memory_mib"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny("train.epochs=2"), out, quiet=True)
    return out


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another seed."""
    out = tmp_path_factory.mktemp("other") / "run"
    train(tiny("train.epochs=2", "run.seed=1"), out, quiet=True)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to be damaged."""
    return RunFolder(shutil.copytree(whole, tmp_path / "run"))


def test_a_finished_run_has_a_manifest_of_all_its_files(run: RunFolder) -> None:
    content = (run.path / "manifest.json").read_bytes()
    assert run.status()["manifest"] == hashlib.sha256(content).hexdigest()
    manifest = json.loads(content)
    assert manifest["run_id"] == run.environment()["run_id"]
    names = {"config.yaml", "dataset.json", "environment.json", "metrics.jsonl"}
    names |= {"predictions.npz", "summary.json"}
    names |= {f"checkpoints/{c.path.name}/manifest.json" for c in run.checkpoints()}
    assert manifest["files"].keys() >= names
    for name, entry in manifest["files"].items():
        found = (run.path / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(found).hexdigest(), "size": len(found)}
    assert run.damage() == {}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def another_digit(run: RunFolder, other: Path) -> None:
    values = json.loads((run.path / "dataset.json").read_text())
    values["mean"][0] += 0.6
    (run.path / "dataset.json").write_text(json.dumps(values))


def another_config(run: RunFolder, other: Path) -> None:
    shutil.copy(other / "config.yaml", run.path)


def another_environment(run: RunFolder, other: Path) -> None:
    edit(run.path / "environment.json", '"device"', '"devise"')


def other_summary(run: RunFolder, other: Path) -> None:
    shutil.copy(other / "summary.json", run.path)


def other_predictions(run: RunFolder, other: Path) -> None:
    shutil.copy(other / "predictions.npz", run.path)


def no_predictions(run: RunFolder, other: Path) -> None:
    (run.path / "predictions.npz").unlink()


def lost_row(run: RunFolder, other: Path) -> None:
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def zeroed_rows(run: RunFolder, other: Path) -> None:
    path = run.path / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:300] + bytes(len(content) - 300))


def empty_metrics(run: RunFolder, other: Path) -> None:
    (run.path / "metrics.jsonl").write_bytes(b"")


def other_manifest(run: RunFolder, other: Path) -> None:
    shutil.copy(other / "manifest.json", run.path)


def no_manifest(run: RunFolder, other: Path) -> None:
    (run.path / "manifest.json").unlink()


def other_checkpoints(run: RunFolder, other: Path) -> None:
    shutil.rmtree(run.path / "checkpoints")
    shutil.copytree(other / "checkpoints", run.path / "checkpoints")


def renamed_checkpoint(run: RunFolder, other: Path) -> None:
    first = run.checkpoints()[0].path
    first.rename(first.with_name("step-99999999"))


def later_checkpoint_of_another_run(run: RunFolder, other: Path) -> None:
    newest = RunFolder(other).checkpoints()[-1]
    target = run.path / "checkpoints" / f"step-{newest.step + 5:08d}"
    shutil.copytree(newest.path, target)
    manifest = json.loads((target / "manifest.json").read_text())
    (target / "manifest.json").write_text(json.dumps({**manifest, "step": newest.step + 5}))


Damage = Callable[[RunFolder, Path], None]

REFUSED_BY_EVALUATE = [
    (another_digit, "dataset.json is not what the run wrote"),
    (another_config, "config.yaml is not what the run wrote"),
    (other_manifest, "manifest.json is not what the run wrote"),
    (no_manifest, "manifest.json is missing"),
    (other_checkpoints, "it is of another run"),
]
NAMED_BY_EVALUATE = [
    (another_environment, "environment.json is not what the run wrote"),
    (other_summary, "summary.json is not what the run wrote"),
    (other_predictions, "predictions.npz is not what the run wrote"),
    (no_predictions, "predictions.npz is missing"),
    (lost_row, "metrics.jsonl is not what the run wrote"),
    (zeroed_rows, "metrics.jsonl is not what the run wrote"),
    (renamed_checkpoint, "step-99999999: it is of step"),
    (later_checkpoint_of_another_run, "it is of another run"),
]


def name_of(value: object) -> str:
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("damage", "told"), REFUSED_BY_EVALUATE, ids=name_of)
def test_evaluate_refuses_damaged_files_that_it_needs(
    saccade: Saccade, run: RunFolder, other: Path, damage: Damage, told: str
) -> None:
    damage(run, other)
    code, shown, found = saccade("evaluate", run.path)
    assert (code, shown) == (2, "")
    assert told in found


@pytest.mark.parametrize(("damage", "told"), NAMED_BY_EVALUATE, ids=name_of)
def test_evaluate_warns_of_damaged_files_that_it_does_not_need(
    saccade: Saccade, whole: Path, run: RunFolder, other: Path, damage: Damage, told: str
) -> None:
    damage(run, other)
    code, shown, found = saccade("evaluate", run.path, "--json")
    assert code == 0
    assert told in found
    assert json.loads(shown)["accuracy"] == RunFolder(whole).summary()["test_accuracy"]


@pytest.mark.parametrize("damage", [another_digit, other_predictions, no_predictions], ids=name_of)
def test_explain_refuses_damaged_files(
    saccade: Saccade, run: RunFolder, other: Path, damage: Damage, tmp_path: Path
) -> None:
    damage(run, other)
    code, _, found = saccade("explain", run.path, "--data", "--out", tmp_path / "figures")
    assert code == 2
    assert "is damaged: " in found.splitlines()[-1]


NOT_IN_THE_REPORT = [*REFUSED_BY_EVALUATE[:4], *NAMED_BY_EVALUATE[:4]]


@pytest.mark.parametrize(("damage", "told"), NOT_IN_THE_REPORT, ids=name_of)
def test_report_excludes_and_names_a_damaged_run(
    run: RunFolder, other: Path, damage: Damage, told: str, tmp_path: Path
) -> None:
    damage(run, other)
    folder = tmp_path / "runs"
    folder.mkdir()
    run.path.rename(folder / "bad")
    shutil.copytree(other, folder / "good")
    report = write_report(folder, tmp_path / "report")
    assert [row.runs for row in report.findings.rows] == [1]
    assert [(gap.what, told in gap.reason) for gap in report.left_out] == [("bad", True)]
    page = (tmp_path / "report" / "report.md").read_text()
    assert told in page


def test_report_draws_no_curve_of_damaged_metrics(
    run: RunFolder, tmp_path: Path, other: Path
) -> None:
    lost_row(run, other)
    report = write_report(run.path, tmp_path / "report")
    assert [row.runs for row in report.findings.rows] == [1]
    [gap] = report.left_out
    assert gap.reason == "is not what the run wrote: the run has no curves"


def test_accuracy_must_match_the_predictions_even_without_a_manifest(
    saccade: Saccade, run: RunFolder, tmp_path: Path
) -> None:
    """Runs of an older saccade load, and a message says that they have no manifest."""
    forget_manifest(run)
    assert run.damage() == {}
    for words in (["evaluate", run.path], ["report", run.path, "--out", tmp_path / "report"]):
        code, _, told = saccade(*words)
        assert code == 0
        assert told.count("no manifest") == 1
    code, _, told = saccade("train", "--resume", "--out", run.path)
    assert (code, told.count("no manifest")) == (0, 1)
    summary = run.summary()
    run.write("summary.json", {**summary, "test_accuracy": summary["test_accuracy"] + 0.1})
    told = run.damage()["summary.json"]
    assert "summary.json says test_accuracy" in told
    assert "predictions.npz says" in told
    code, _, found = saccade("report", run.path, "--out", tmp_path / "report")
    assert code == 2
    assert told in found


MENDED = [other_summary, other_predictions, no_predictions, lost_row, zeroed_rows, empty_metrics]


@pytest.mark.parametrize("damage", MENDED, ids=name_of)
def test_resume_repairs_files_from_the_last_checkpoint(
    whole: Path, run: RunFolder, other: Path, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run, other)
    assert run.damage()
    train(tiny("train.epochs=2"), run.path, resume=True)
    told = capsys.readouterr().err
    assert "finished already" not in told
    assert "repairing the finished run: " in told
    before = RunFolder(whole)
    assert run.damage() == {}
    assert final_state(run.path) == final_state(whole)
    assert run.metrics("epoch") == before.metrics("epoch")
    assert run.metrics("test") == before.metrics("test")
    for key, values in before.predictions().items():
        np.testing.assert_array_equal(run.predictions()[key], values)
    pairs = [(run.summary()[key], before.summary()[key]) for key in before.summary().keys() - TIMED]
    assert [a for a, _ in pairs] == [b for _, b in pairs]


def test_resume_repairs_a_run_with_a_summary_but_no_final_status(
    whole: Path, run: RunFolder
) -> None:
    """The state after a power failure: a summary, a test row of zeros, status `running`."""
    status = {k: v for k, v in run.status().items() if k != "manifest"}
    run.write("status.json", {**status, "state": "running"})
    (run.path / "manifest.json").unlink()
    content = (run.path / "metrics.jsonl").read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    (run.path / "metrics.jsonl").write_bytes(content[:start] + bytes(len(content) - start))
    train(tiny("train.epochs=2"), run.path, resume=True, quiet=True)
    assert run.is_finished()
    assert run.metrics("test") == RunFolder(whole).metrics("test")
    assert run.damage() == {}


UNMENDABLE = [another_digit, another_config, another_environment, other_manifest, no_manifest]


@pytest.mark.parametrize("damage", UNMENDABLE, ids=name_of)
def test_resume_refuses_damage_that_it_cannot_repair(
    run: RunFolder, other: Path, damage: Damage
) -> None:
    damage(run, other)
    before = {path: path.read_bytes() for path in run.path.rglob("*.*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"is damaged: \w+\.\w+ is"):
        train(tiny("train.epochs=2"), run.path, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in before} == before


def test_resume_of_a_damaged_run_without_a_checkpoint_is_refused(run: RunFolder) -> None:
    shutil.rmtree(run.path / "checkpoints")
    assert run.damage() == {}  # checkpoints may be deleted
    (run.path / "predictions.npz").unlink()
    with pytest.raises(ConfigError, match=r"predictions.npz is missing; no checkpoint is left"):
        train(tiny("train.epochs=2"), run.path, resume=True, quiet=True)
    assert run.is_finished()


def test_leftovers_of_killed_writers_are_deleted_when_the_run_is_opened(run: RunFolder) -> None:
    for name in (f".status.json.{'0' * 32}", f".predictions.npz.{'a' * 32}"):
        (run.path / name).write_text("half")
    (run.path / ".kept").write_text("not ours")
    RunFolder.open(run.path)
    left = {path.name for path in run.path.glob(".*")}
    assert left - {".lock", ".owner"} == {".kept"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    plan = tiny_plan(out, attentions=("softmax", "taylor"), seeds=2)
    compare(plan, out / "study", quiet=True)
    return out


@pytest.mark.parametrize(
    ("damage", "told"), [*NAMED_BY_EVALUATE[1:4], REFUSED_BY_EVALUATE[0]], ids=name_of
)
def test_a_comparison_excludes_damaged_runs_and_resume_repairs_them(
    compared: Path, other: Path, damage: Damage, told: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(compared, tmp_path / "copy")
    plan, study = tiny_plan(folder, attentions=("softmax", "taylor"), seeds=2), folder / "study"
    before = json.loads((study / "results.json").read_text())
    run = RunFolder(study / "runs" / "taylor" / "seed-1")
    damage(run, other)
    report = write_report(study, tmp_path / "report")
    assert [gap.what for gap in report.left_out] == ["taylor/seed-1"]
    assert told in report.left_out[0].reason
    assert sorted(row.runs for row in report.findings.rows) == [1, 2]
    if damage is another_digit:
        with pytest.raises(DamagedRunError, match=r"dataset\.json is not what the run wrote"):
            compare(plan, study, resume=True, quiet=True)
        return
    results = compare(plan, study, resume=True, quiet=True)
    assert results["left_out"] == []
    assert [row["accuracies"] for row in results["rows"]] == [
        row["accuracies"] for row in before["rows"]
    ]


def test_results_of_a_comparison_name_a_run_that_cannot_be_repaired(
    compared: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(compared, tmp_path / "copy")
    plan, study = tiny_plan(folder, attentions=("softmax", "taylor"), seeds=2), folder / "study"
    run = RunFolder(study / "runs" / "taylor" / "seed-1")
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "predictions.npz").unlink()
    results = compare(plan, study, resume=True, quiet=True)
    assert [row["runs"] for row in results["rows"]] == [2, 1]
    assert results["complete"] is False
    assert results["left_out"] == [
        {"run": "taylor/seed-1", "reason": "damaged: predictions.npz is missing"}
    ]
