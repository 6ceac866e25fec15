"""What is read, and what is left out and why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saccade.errors import ConfigError
from saccade.io import sealed
from saccade.report.collect import collect, number, plain
from saccade.runs import RunFolder
from tests.report.made_runs import make_run, make_study, write_record


def reasons(folder: Path) -> dict[str, str]:
    return {gap.what: gap.reason for gap in collect(folder).left_out}


def set_state(run: RunFolder, state: str, message: str = "") -> None:
    run.write("status.json", {"state": state, "epoch": 1, "message": message})
    (run.path / "summary.json").unlink()


def pickled(run: RunFolder) -> None:
    np.savez(run.path / "predictions.npz", target=np.array([{"a": 1}], dtype=object))


SPOILED: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "running": (lambda run: set_state(run, "running"), "running, or killed after epoch 1 of 2"),
    "failed": (
        lambda run: set_state(run, "failed", "step 3 is not finite"),
        "failed after epoch 1 of 2: step 3 is not finite",
    ),
    "preempted": (lambda run: set_state(run, "preempted"), "preempted, can be resumed"),
    "no status": (lambda run: (run.path / "status.json").unlink(), "half-written: no status.json"),
    "no summary": (lambda run: (run.path / "summary.json").unlink(), "no summary.json"),
    "status cut": (lambda run: (run.path / "status.json").write_text('{"sta'), "status.json"),
    "status a list": (lambda run: (run.path / "status.json").write_text("[1]"), "JSON object"),
    "config unreadable": (
        lambda run: (run.path / "config.yaml").write_text("model: [unclosed"),
        "not valid YAML",
    ),
    "config newer": (
        lambda run: (run.path / "config.yaml").write_text("version: 99\n"),
        "written by a newer saccade",
    ),
    "no accuracy": (
        lambda run: run.write("summary.json", {"test_accuracy": "high"}),
        "neither a test nor a validation accuracy",
    ),
    "accuracy in percent": (
        lambda run: run.write("summary.json", {"test_accuracy": 97.3}),
        "between 0 and 1",
    ),
    "pickled predictions": (pickled, "predictions.npz"),
    "predictions cut": (
        lambda run: (run.path / "predictions.npz").write_bytes(b"PK"),
        "predictions.npz",
    ),
    "too few classes": (
        lambda run: run.write("dataset.json", {"class_names": ["0", "1"]}),
        "does not fit 2 classes",
    ),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_bad_run_is_left_out_with_its_reason(tmp_path: Path, fault: str) -> None:
    make_run(tmp_path / "good")
    spoil, told = SPOILED[fault]
    spoil(make_run(tmp_path / "bad"))
    evidence = collect(tmp_path)
    assert [run.name for run in evidence.runs] == ["good"]
    assert [gap.what for gap in evidence.left_out] == ["bad"]
    assert told in evidence.left_out[0].reason
    assert str(tmp_path) not in evidence.left_out[0].reason


@pytest.mark.parametrize("content", ["{}\n", "3\n", "[]\n", "\0\0\0", "[" * 100_000])
def test_metrics_that_hold_something_else_are_left_out(tmp_path: Path, content: str) -> None:
    (make_run(tmp_path / "odd").path / "metrics.jsonl").write_text(content)
    evidence = collect(tmp_path)
    assert [run.epochs for run in evidence.runs] == [[]]
    assert reasons(tmp_path) == {
        "odd/metrics.jsonl": "holds no epoch that can be read: the run has no curves"
    }


def test_good_runs_are_all_read(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=2)
    evidence = collect(tmp_path)
    assert [run.name for run in evidence.runs] == [
        "softmax/seed-0",
        "softmax/seed-1",
        "taylor/seed-0",
        "taylor/seed-1",
    ]
    assert evidence.left_out == []


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_no_folder_or_no_runs(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    {"empty": folder.mkdir, "file": folder.touch}.get(kind, lambda: None)()
    with pytest.raises(ConfigError, match=r"no such folder|no run folder"):
        collect(folder)


def test_nothing_finished_says_why(tmp_path: Path) -> None:
    for name in ("a", "b"):
        set_state(make_run(tmp_path / name), "failed", "out of memory")
    with pytest.raises(ConfigError, match=r"no finished run: a: failed.*memory \(and 1 more\)"):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"version": 2, "rows": "?"}', "newer saccade: version 2, this one reads up to 1"),
        ('{"rows": []}', "it has no version"),
        ("[]", "it has no version"),
        ('{"version": 1', "cannot be read"),
    ],
)
@pytest.mark.parametrize("name", ["results.json", "study.json"])
def test_an_unreadable_record_does_not_stop_the_report(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    make_run(tmp_path / "run")
    (tmp_path / name).write_text(content)
    assert told in reasons(tmp_path)[name]


def test_runs_of_a_study_that_are_missing(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9}, seeds=1)
    write_record(tmp_path / "study.json", attentions=["softmax", "taylor"], seeds=[0, 1])
    gone = [{"run": "taylor/seed-0", "reason": "told already"}, {"run": "x", "reason": "unfair"}]
    write_record(tmp_path / "results.json", rows=[], left_out=gone)
    assert reasons(tmp_path) == {
        "softmax/seed-1": "not started",
        "taylor/seed-0": "not started",
        "taylor/seed-1": "not started",
        "x": "unfair",
    }


def test_epochs_that_cannot_be_are_not_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for epoch in (0, 3, 1e308, "1", None):
        run.append_metrics({"kind": "epoch", "epoch": epoch, "val_accuracy": 0.5})
    assert [row["epoch"] for row in collect(tmp_path).runs[0].epochs] == [1, 2]


NO_EPOCH = "holds no epoch that can be read: the run has no curves"
LOST: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing: the run has no curves"),
    "empty": (lambda file: file.write_text(""), NO_EPOCH),
    "cut at once": (lambda file: file.write_text('{"a\n'), NO_EPOCH),
    "steps alone": (lambda file: file.write_text('{"kind": "step", "step": 3}\n'), NO_EPOCH),
    "cut later": (
        lambda file: file.write_text('{"kind": "epoch", "epoch": 1}\n{"k'),
        "holds 1 of 2 epochs: its group is drawn over these only",
    ),
}


@pytest.mark.parametrize("fault", LOST)
def test_lost_epochs_are_told_and_the_run_is_kept(tmp_path: Path, fault: str) -> None:
    make_run(tmp_path / "good")
    lose, told = LOST[fault]
    lose(make_run(tmp_path / "bad").path / "metrics.jsonl")
    evidence = collect(tmp_path)
    assert [run.name for run in evidence.runs] == ["bad", "good"]
    assert [gap.what for gap in evidence.left_out] == ["bad/metrics.jsonl"]
    assert evidence.left_out[0].reason == told


def test_names_of_a_study_may_be_anything(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    write_record(tmp_path / "study.json", attentions=["x" * 5000, {"a": 1}], seeds=[10**30, None])
    assert len(collect(tmp_path).left_out) == 4


def test_untested_runs_are_not_mixed_with_tested_ones(tmp_path: Path) -> None:
    make_run(tmp_path / "tested")
    make_run(tmp_path / "trial", summary={"test_accuracy": None}, keep_predictions=False)
    assert reasons(tmp_path) == {"trial": "has no test accuracy, unlike the others"}
    assert len(collect(tmp_path / "trial").runs) == 1


def test_strangers_values() -> None:
    assert plain("a\x00b\nc\ud800") == "a b c"
    assert len(plain("x" * 1000)) == 300
    wrong = (None, True, "1", float("nan"), float("inf"), -float("inf"), 10**400, [1])
    assert [number(value) for value in wrong] == [None] * len(wrong)
    assert number(json.loads("1")) == 1.0


def test_a_copy_of_a_run_is_counted_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "softmax", 0, accuracy=0.8)
    run.write("environment.json", {**run.environment(), "run_id": "1f"})
    shutil.copytree(run.path, tmp_path / "b")
    found = collect(tmp_path)
    assert [run.name for run in found.runs] == ["a"]
    assert reasons(tmp_path) == {"b": "is a copy of a"}


def test_a_run_that_a_comparison_did_not_plan_for_its_place_is_left_out(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.8, "taylorshift": 0.8}, seeds=2)
    write_record(tmp_path / "study.json", kind="compare")
    other = tmp_path / "runs/taylorshift/seed-1"
    for place in ("runs/softmax/seed-0", "runs/softmax/seed-1"):
        shutil.rmtree(tmp_path / place)
        shutil.copytree(other, tmp_path / place)
    told = "is not the planned run, but that of taylorshift/seed-1"
    assert reasons(tmp_path) == {"softmax/seed-0": told, "softmax/seed-1": told}


def test_a_run_without_its_configuration_is_named(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.8}, seeds=3)
    (tmp_path / "runs/softmax/seed-1/config.yaml").unlink()
    failed = RunFolder(tmp_path / "runs/softmax/seed-2")
    set_state(failed, "failed", "out of memory")
    (failed.path / "config.yaml").unlink()
    assert reasons(tmp_path) == {
        "softmax/seed-1": "has no config.yaml",
        "softmax/seed-2": "failed: out of memory",
    }


@pytest.mark.parametrize("name", ["results.json", "study.json"])
def test_a_changed_record_of_a_study_is_left_out(tmp_path: Path, name: str) -> None:
    make_study(tmp_path, {"softmax": 0.8}, seeds=1)
    record = sealed({"version": 1, "rows": [{"attention": "softmax", "latency_ms": 2.5}]})
    (tmp_path / name).write_text(json.dumps(record).replace("2.5", "0.5"))
    assert reasons(tmp_path) == {name: "was changed after it was written"}
    (tmp_path / name).write_text(json.dumps(record))
    assert reasons(tmp_path) == {}
