"""A comparison: only the attention differs, the table is correct, and no work is lost."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from saccade.config import load_config
from saccade.data import load_splits
from saccade.errors import ConfigError, DataError
from saccade.layers import ATTENTIONS, Attention
from saccade.results import shared_rate_note
from saccade.runs import RunFolder
from saccade.stats import (
    accuracy_interval,
    corrected_p_values,
    paired_difference,
    seed_scatter,
)
from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Job, Plan, make_plan, start
from saccade.study.comparison.fairness import UnfairError
from saccade.study.comparison.measures import measure
from saccade.study.comparison.results import collect
from saccade.study.comparison.work import work, write_initial_weights
from saccade.train import train
from tests.study.tiny_comparison import NAMES, UniformCore, last_weights, tiny_plan
from tests.train.tiny_runs import forget_manifest, unfinish

ROW = {
    *(
        "attention",
        "kind",
        "length",
        "runs",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "accuracies",
    ),
    *("accuracy_spread", "seconds_per_epoch", "img_per_s", "latency_ms", "latency_batch"),
    *("peak_memory_mib", "parameters", "flops", "approximation_error", "difference"),
    *("difference_low", "difference_high", "p_value", "p_corrected"),
}


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


def correct(out: Path, attention: str) -> np.ndarray:
    folder = ComparisonFolder.open(out)
    found = [folder.run(Job(attention, seed)).predictions() for seed in folder.plan.seeds]
    return np.stack([part["target"] == part["predicted"] for part in found])


def test_folder_and_results_have_the_documented_contents(finished: Path) -> None:
    study = json.loads((finished / "study.json").read_text())
    assert study["kind"] == "compare"
    assert (study["attentions"], study["seeds"], study["folds"]) == ([*NAMES], [0, 1], None)
    results = json.loads((finished / "results.json").read_text())
    assert results["complete"] is True
    assert results["measure"] == "test_accuracy"
    assert results["left_out"] == []
    assert [row["attention"] for row in results["rows"]] == [*NAMES]
    for row in results["rows"]:
        assert row.keys() >= ROW
        assert row["runs"] == 2
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
        assert row["latency_ms"] > 0
        assert row["latency_eval_batch"] == 61
        assert row["peak_memory_mib"] > 4 * row["parameters"] / 2**20
    softmax, taylorshift, performer = results["rows"]
    assert softmax["difference"] is softmax["p_value"] is softmax["approximation_error"] is None
    assert 0 < taylorshift["approximation_error"] < 0.5
    assert performer["approximation_error"] > 0
    assert taylorshift["parameters"] == softmax["parameters"] + 2  # a temperature a head
    assert taylorshift["flops"] >= softmax["flops"] > 0


def test_all_files_have_the_permissions_of_the_results(finished: Path) -> None:
    modes = {path.name: path.stat().st_mode for path in finished.rglob("*") if path.is_file()}
    assert any(finished.glob("initial/*.safetensors"))
    assert set(modes.values()) == {modes["results.json"]}


def test_speed_is_measured_again_after_overlapping_runs(copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    own = collect(folder)
    assert own["speed"] == "own"
    assert own["notes"] == [shared_rate_note(0.01)]
    early = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    for job in folder.plan.jobs():  # as if all runs had begun at the same time, an hour ago
        run = folder.run(job)
        forget_manifest(run)
        run.write("environment.json", {**run.environment(), "time": early})
    shared = collect(folder)
    assert shared["speed"] == "shared"
    assert "slowed each other down" in shared["notes"][1]
    assert [row["img_per_s"] for row in shared["rows"]] == [row["img_per_s"] for row in own["rows"]]
    measure(folder)
    alone = collect(folder)
    assert alone["speed"] == "alone"
    assert "one attention at a time" in alone["notes"][1]
    measured = folder.measures()
    for row in alone["rows"]:
        assert row["img_per_s"] == measured[row["attention"]]["img_per_s"] > 0
        run = folder.run(Job(row["attention"], 0)).summary()
        images = run["img_per_s"] * run["seconds_per_epoch"]
        assert row["img_per_s"] * row["seconds_per_epoch"] == pytest.approx(images, rel=0.01)


def test_images_per_epoch_come_from_a_single_run(copied: Path) -> None:
    """The runs differ, so the product of two medians would mix them."""
    folder = ComparisonFolder.open(copied)
    for job in folder.plan.jobs():
        slower = 1 + 9 * job.seed
        forget_manifest(folder.run(job))
        unlike = {"img_per_s": 1000 / slower, "seconds_per_epoch": 0.2 * slower}
        folder.run(job).write("summary.json", {**folder.run(job).summary(), **unlike})
    measured = {name: {**found, "img_per_s": 50} for name, found in folder.measures().items()}
    folder.write("measures.json", measured)
    for row in collect(folder)["rows"]:
        assert (row["img_per_s"], row["seconds_per_epoch"]) == (50, pytest.approx(200 / 50))


def test_attentions_are_measured_with_or_without_trained_weights(copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    for attention, seeds in (("softmax", [0]), ("taylorshift", [0, 1])):
        for seed in seeds:
            checkpoints = folder.run(Job(attention, seed)).path / "checkpoints"
            checkpoints.rename(checkpoints.with_name("elsewhere"))
    (copied / "measures.json").unlink()
    measure(folder)
    measured = folder.measures()
    assert measured.keys() == set(NAMES)
    assert all(found["latency_ms"] > 0 for found in measured.values())
    errors = {name for name, found in measured.items() if found["approximation_error"] is not None}
    assert errors == set(NAMES) - {"taylorshift", "softmax"}
    results = collect(folder)
    assert results["notes"][-1].endswith("no run still has its trained weights: taylorshift")
    assert next(row for row in results["rows"] if row["attention"] == "taylorshift")["latency_ms"]
    checkpoints.with_name("elsewhere").rename(checkpoints)
    measure(folder)
    again = folder.measures()
    assert again["taylorshift"]["approximation_error"] is not None
    assert again["softmax"] == measured["softmax"]


def test_results_agree_with_the_predictions(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    rows = results["rows"]
    tables = {name: correct(finished, name) for name in NAMES}
    scatter = seed_scatter(list(tables.values()))
    tests = {
        (first, second): paired_difference(
            tables[NAMES[first]],
            tables[NAMES[second]],
            shared=scatter.shared,
            own=scatter.of_pair(first, second),
        )
        for first, second in ((1, 0), (2, 0), (1, 2))
    }
    corrected = corrected_p_values(list(tests.values()))
    assert [pair["p_corrected"] for pair in results["pairs"]] == corrected[2:]
    for row in rows:
        table = tables[row["attention"]]
        interval = accuracy_interval(table)
        assert (row["accuracy_low"], row["accuracy_high"]) == (interval.low, interval.high)
        assert row["accuracies"] == table.mean(axis=1).tolist()
    for row, found, p in zip(rows[1:], tests.values(), corrected, strict=False):
        assert (row["difference"], row["p_value"]) == (found.mean, found.p_value)
        assert row["p_corrected"] == p


@pytest.mark.parametrize(
    ("cores", "gpus", "missing", "jobs"),
    [(2, 0, 6, 2), (16, 0, 6, 4), (16, 0, 1, 4), (16, 1, 6, 1), (16, 8, 6, 6), (2, 0, 0, 1)],
)
def test_default_number_of_workers_depends_on_the_machine(
    cores: int, gpus: int, missing: int, jobs: int, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ComparisonFolder.open(copied)
    for job in folder.plan.jobs()[:missing]:
        shutil.rmtree(folder.run(job).path)
    plan = replace(
        folder.plan, base=load_config("digits-quick")
    )  # which uses a GPU if there is one
    monkeypatch.setattr(ComparisonFolder, "plan", plan)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert start._training(folder, 0.0, None, is_local=True).jobs == jobs


def test_notes_mention_the_shared_learning_rate(finished: Path) -> None:
    notes = json.loads((finished / "results.json").read_text())["notes"]
    assert notes[0].startswith("one learning rate (0.01) for all attentions, tuned for none of")


def test_notes_mention_pairs_with_one_seed_in_common(copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    assert not any("one seed" in note for note in collect(folder)["notes"])
    shutil.rmtree(folder.run(Job("softmax", 1)).path)
    (note,) = (note for note in collect(folder)["notes"] if "one seed" in note)
    assert note.startswith("one seed in common (taylorshift and softmax, performer and softmax): ")


def test_new_attention_is_compared_without_further_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = Attention("cores.SoftmaxCore", "another", linear=False)
    monkeypatch.setitem(ATTENTIONS._entries, "further", further)
    plan = make_plan("digits-quick")
    assert plan.attentions == tuple(ATTENTIONS)
    assert plan.attentions[-1] == "further"


def test_notes_mention_overlapping_runs(copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    assert not any("same time" in note for note in collect(folder)["notes"])
    run = folder.run(Job("performer", 1))
    first = datetime.fromisoformat(folder.run(folder.plan.jobs()[0]).environment()["time"])
    early, late = first - timedelta(minutes=1), first + timedelta(minutes=1)
    forget_manifest(run)
    run.write("environment.json", {**run.environment(), "time": early.isoformat()})
    run.write("status.json", {**run.status(), "updated": late.timestamp()})
    assert any("same time" in note for note in collect(folder)["notes"])


def test_all_attentions_start_from_the_same_weights(tmp_path: Path) -> None:
    """The learning rate is so small that the final weights equal the initial weights."""
    still = ["optim.lr=1e-30", "train.epochs=1", "data.num_train=60", "data.num_test=20"]
    plan = tiny_plan(tmp_path, *still, attentions=tuple(ATTENTIONS), seeds=1)
    folder = ComparisonFolder.start(tmp_path / "study", plan, resume=False)
    write_initial_weights(folder, load_splits(plan.base.data).info)
    work(folder, since=0)
    softmax = last_weights(folder.run(Job("softmax", 0)))
    assert len(softmax) > 10
    for attention in plan.attentions[1:]:
        other = last_weights(folder.run(Job(attention, 0)))
        assert softmax.keys() <= other.keys()
        assert all(".core." in name for name in other.keys() - softmax.keys())
        for name, tensor in softmax.items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-20)


def test_seeds_start_from_different_weights(finished: Path) -> None:
    first, second = (load_file(ComparisonFolder.open(finished).initial(seed)) for seed in (0, 1))
    assert first.keys() == second.keys()
    assert not torch.equal(first["head.weight"], second["head.weight"])


def plant(out: Path, plan: Plan, job: Job, epochs: int) -> Path:
    """Replace a run by one with another number of epochs."""
    folder = ComparisonFolder.open(out)
    run = folder.run(job).path
    shutil.rmtree(run)
    config = plan.config(job)
    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    train(longer, run, quiet=True, initial=folder.initial(job.seed))
    return run


def test_run_that_was_trained_longer_is_refused(copied: Path, plan: Plan) -> None:
    run = plant(copied, plan, Job("performer", 1), epochs=3)
    with pytest.raises(
        UnfairError, match=r"performer/seed-1 was not run .* train.epochs \(2 -> 3\)"
    ):
        compare(plan, copied, resume=True, quiet=True)
    forget_manifest(RunFolder(run))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("\n  epochs: 3\n", "\n  epochs: 2\n"))
    with pytest.raises(UnfairError, match=r"must have .*'epochs': 2.*, got .*'epochs': 3.* 3 rows"):
        compare(plan, copied, resume=True, quiet=True)
    summary = run / "summary.json"
    summary.write_text(summary.read_text().replace('"epochs": 3', '"epochs": 2'))
    with pytest.raises(UnfairError, match="and 3 rows of metrics"):
        compare(plan, copied, resume=True, quiet=True)
    metrics = run / "metrics.jsonl"
    rows = metrics.read_text().splitlines()
    metrics.write_text("\n".join(row for row in rows if '"epoch": 3' not in row) + "\n")
    with pytest.raises(UnfairError, match="the training budgets differ"):
        compare(plan, copied, resume=True, quiet=True)


def test_run_with_other_classes_is_refused(copied: Path, plan: Plan) -> None:
    run = ComparisonFolder.open(copied).run(Job("performer", 1))
    forget_manifest(run)
    run.write("dataset.json", {**run.dataset(), "class_names": [*"012345678", "ten"]})
    with pytest.raises(DataError, match=r"performer/seed-1' was trained on: no class 'ten'"):
        compare(plan, copied, resume=True, quiet=True)


def test_run_with_other_initial_weights_is_refused(copied: Path, plan: Plan) -> None:
    job = Job("performer", 0)
    run = ComparisonFolder.open(copied).run(job).path
    shutil.rmtree(run)
    train(plan.config(job), run, quiet=True)
    with pytest.raises(UnfairError, match="did not start from the same weights"):
        compare(plan, copied, resume=True, quiet=True)


def test_attention_that_cannot_learn_is_significantly_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Attention(UniformCore, "uniform weights", linear=True)
    monkeypatch.setitem(ATTENTIONS._entries, "dead", dead)
    learn = [
        "model.overrides={embed_dim: 32, depth: 1, num_heads: 8, patch_size: 2, init_std: 0.2}",
        *("data.num_train=300", "data.num_test=null", "augment.crop_padding=0"),
        *("optim.lr=0.01", "train.epochs=8", "train.batch_size=50"),
        "run.checkpoint_every_steps=null",
    ]
    plan = tiny_plan(tmp_path, *learn, attentions=("softmax", "dead"), seeds=3)
    alive, found = compare(plan, tmp_path / "study", quiet=True)["rows"]
    assert alive["accuracy"] > 0.5
    assert found["p_corrected"] < 0.05
    assert found["difference_high"] < 0


def test_folds_cover_the_training_set_and_not_the_test_set(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, "train.epochs=1", attentions=("softmax", "taylor"), seeds=1, folds=2)
    results = compare(plan, tmp_path / "study", quiet=True)
    assert results["measure"] == "fold_accuracy"
    assert results["complete"]
    folder = ComparisonFolder.open(tmp_path / "study")
    runs = [folder.run(job) for job in plan.jobs() if job.attention == "taylor"]
    assert [run.path.name for run in runs] == ["fold-0", "fold-1"]
    tested = np.concatenate([run.predictions()["target"] for run in runs])
    labels = load_splits(plan.base.data.model_copy(update={"val_fraction": 0.0})).train.labels
    assert sorted(tested.tolist()) == sorted(labels.tolist())
    row = results["rows"][1]
    accuracies = [run.summary()["test_accuracy"] for run in runs]
    assert row["runs"] == 2
    assert row["accuracy_spread"] == pytest.approx(np.std(accuracies, ddof=1))
    assert row["accuracies"] == [row["accuracy"]]


def test_finished_comparison_is_not_run_again(copied: Path, plan: Plan) -> None:
    files = [f for f in (copied / "runs").rglob("*") if f.is_file() and f.name != ".lock"]
    before = {file: file.stat().st_mtime_ns for file in files}
    compare(plan, copied, resume=True, quiet=True)
    assert {file: file.stat().st_mtime_ns for file in files} == before
    with pytest.raises(ConfigError, match="already holds a comparison; add --resume"):
        compare(plan, copied, quiet=True)


def test_incomplete_runs_are_completed_on_resume(copied: Path, plan: Plan) -> None:
    folder = ComparisonFolder.open(copied)
    expected = last_weights(folder.run(Job("performer", 1)))
    half = folder.run(Job("performer", 1)).path
    unfinish(RunFolder(half))
    shutil.rmtree(half / "checkpoints")
    (half / "metrics.jsonl").write_text('{"step": 1, "kind": "ep')
    empty = folder.run(Job("taylorshift", 1)).path
    shutil.rmtree(empty)
    empty.mkdir()
    (empty / ".config.yaml.4711").write_text("model")
    results = compare(plan, copied, resume=True, quiet=True)
    assert results["complete"]
    again = last_weights(folder.run(Job("performer", 1)))
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("has_manifest", [True, False])
def test_finished_run_without_predictions_is_left_out_and_repaired(
    copied: Path, plan: Plan, has_manifest: bool
) -> None:
    folder = ComparisonFolder.open(copied)
    run = folder.run(Job("softmax", 0))
    if not has_manifest:
        forget_manifest(run)
    (run.path / "predictions.npz").unlink()
    results = collect(folder)
    assert results["left_out"] == [
        {"run": "softmax/seed-0", "reason": "damaged: predictions.npz is missing"}
    ]
    assert compare(plan, copied, resume=True, quiet=True)["complete"]


def test_failed_runs_are_left_out_and_tried_again(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, "optim.lr=1e30", "optim.clip_norm=null", seeds=1)
    results = compare(plan, tmp_path / "study", quiet=True)
    assert not results["complete"]
    assert [gap["run"] for gap in results["left_out"]] == [f"{name}/seed-0" for name in NAMES]
    assert all("not finite" in gap["reason"] for gap in results["left_out"])
    assert [row["accuracy"] for row in results["rows"]] == [None] * 3
    folder = ComparisonFolder.open(tmp_path / "study")
    before = folder.run(plan.jobs()[0]).status()["updated"]
    compare(plan, tmp_path / "study", resume=True, quiet=True)
    assert folder.run(plan.jobs()[0]).status()["updated"] > before


def test_attention_with_one_seed_does_not_change_the_tests_of_the_others(copied: Path) -> None:
    folder = ComparisonFolder.open(copied)
    whole = {name: correct(copied, name) for name in NAMES}
    lost = Job(NAMES[-1], 1)
    shutil.rmtree(folder.run(lost).path)
    rows = {row["attention"]: row for row in collect(folder)["rows"]}
    expected = paired_difference(whole[NAMES[1]], whole[NAMES[0]])
    assert rows[NAMES[1]]["p_value"] == expected.p_value
    alone = paired_difference(whole[lost.attention][:1], whole[NAMES[0]][:1])
    assert rows[lost.attention]["p_value"] == alone.p_value
