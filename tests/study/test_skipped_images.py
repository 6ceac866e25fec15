"""Unreadable images: they are not counted, and all outputs report the same numbers."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from saccade.config import dump_config
from saccade.report import write_report
from saccade.report.collect import collect
from saccade.report.findings import find
from saccade.runs import RunFolder
from saccade.study.comparison import ComparisonFolder
from saccade.train.run_data import load_run_data
from tests.cli.conftest import Saccade, fresh
from tests.data.pictures import picture, save, truncate
from tests.train.tiny_runs import tiny

BAD = 4
SKIP = ["data.name=folder", "data.image_size=8", "data.on_bad_image=skip", "train.epochs=1"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe for a folder of images, with four truncated test images."""
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(("cat", "dog", "owl")):
        for i in range(20):
            part = "test" if i < 8 else "train"
            save(picture(100 * number + i, 8, 8), folder / "my-images" / part / name / f"{i}.png")
    for name, i in (("cat", 0), ("cat", 7), ("dog", 3), ("owl", 5)):
        truncate(folder / "my-images" / "test" / name / f"{i}.png")
    cut = ["data.num_train=null", "data.num_test=null", "train.ema_decay=null"]
    config = tiny(*SKIP, *cut, f"data.root={folder / 'my-images'}")
    (folder / "recipe.yaml").write_text(dump_config(config))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def study(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Folder, stdout and stderr of `saccade compare` with two worker processes."""
    out = tmp_path_factory.mktemp("skipped") / "study"
    words = ["--attention", "softmax,taylor", "--seeds", "2", "--jobs", "2", "--out", str(out)]
    done = fresh("compare", str(recipe), *words)
    assert done.returncode == 0, done.stderr
    return out, done.stdout.decode(), done.stderr.decode()


def test_skipped_images_are_not_counted_as_correct(study: tuple[Path, str, str]) -> None:
    folder = ComparisonFolder.open(study[0])
    results = json.loads((study[0] / "results.json").read_text())
    assert (results["images"], results["images_skipped"]) == (24 - BAD, BAD)
    for row in results["rows"]:
        jobs = [job for job in folder.plan.jobs() if job.attention == row["attention"]]
        summaries = [folder.run(job).summary() for job in jobs]
        own = [summary["test_accuracy"] for summary in summaries]
        assert row["accuracies"] == pytest.approx(own)
        assert row["accuracy"] == pytest.approx(np.mean(own))
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert [s["test_count"] for s in summaries] == [24 - BAD] * 2
        assert [s["test_skipped"] for s in summaries] == [BAD] * 2


def test_table_results_and_page_have_the_same_numbers(study: tuple[Path, str, str]) -> None:
    out, table, _ = study
    results = json.loads((out / "results.json").read_text())
    found = find(collect(out))
    for row, shown in zip(results["rows"], found.rows, strict=True):
        names = ("accuracy", "accuracy_low", "accuracy_high")
        assert [row[name] for name in names] == [getattr(shown, name) for name in names]
        (line,) = (
            x for x in table.splitlines() if x.split()[:1] == [row["attention"]] and "%" in x
        )
        assert line.split()[1] == f"{100 * row['accuracy']:.2f}"
    (claim,) = found.against_baseline
    names = ("difference", "p_value", "p_corrected")
    assert [results["rows"][1][name] for name in names] == [getattr(claim, n) for n in names]
    note = "4 of 24 test images could not be read and are not counted"
    assert results["notes"].count(note) == 1
    assert table.count(note) == 1
    page = (out / "report" / "report.md").read_text()
    assert page.count(note) == 1
    assert "20 images judged, 4 could not be read" in page
    skipped = (out / "report" / "tables" / "skipped.csv").read_text().splitlines()
    assert [line.split(":")[0] for line in skipped[1:]] == [
        f"test,test/{name}.png" for name in ("cat/0", "cat/7", "dog/3", "owl/5")
    ]
    assert all(line.endswith(",4") for line in skipped[1:])


def test_each_skipped_image_is_reported_once(study: tuple[Path, str, str]) -> None:
    reported = re.findall(r"skipped bad image \S+/(test/\w+/\d\.png)", study[2])
    assert sorted(reported) == [f"test/{n}.png" for n in ("cat/0", "cat/7", "dog/3", "owl/5")], (
        study[2]
    )


def test_folds_count_only_judged_images(recipe: Path, tmp_path: Path, saccade: Saccade) -> None:
    bad = recipe.parent / "my-images" / "train" / "cat" / "9.png"
    whole = bad.read_bytes()
    truncate(bad)
    words = ["--attention", "softmax,taylor", "--seeds", "1", "--folds", "2", "--jobs", "1"]
    try:
        code, _, err = saccade("compare", recipe, *words, "--out", tmp_path / "study", "--json")
    finally:
        bad.write_bytes(whole)
    assert code == 0, err
    results = json.loads((tmp_path / "study" / "results.json").read_text())
    assert (results["images"], results["images_skipped"]) == (35, 1)
    for row in results["rows"]:
        runs = [
            RunFolder(tmp_path / "study" / "runs" / row["attention"] / "seed-0" / f"fold-{fold}")
            for fold in (0, 1)
        ]
        parts = [run.predictions() for run in runs]
        right = sum(int((p["target"] == p["predicted"])[p["target"] >= 0].sum()) for p in parts)
        assert row["accuracies"] == [right / 35]
    rows = find(collect(tmp_path / "study")).rows
    assert [row.accuracy for row in rows] == [row["accuracy"] for row in results["rows"]]


def test_evaluate_and_explain_report_the_number_of_skipped_images(
    study: tuple[Path, str, str], tmp_path: Path, saccade: Saccade
) -> None:
    run = study[0] / "runs" / "softmax" / "seed-0"
    code, out, err = saccade("evaluate", run, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["count"], found["skipped"]) == (24 - BAD, BAD)
    assert np.sum(found["confusion"]) == 24 - BAD
    assert found["accuracy"] == RunFolder(run).summary()["test_accuracy"]
    code, out, err = saccade("explain", run, "--data", "--out", tmp_path, "--json")
    assert code == 0, err
    mistakes = json.loads(out.splitlines()[-1])["mistakes"]
    assert len(mistakes) == found["count"] - found["correct"]


def test_samples_leave_out_training_images_that_could_not_be_read(
    recipe: Path, tmp_path: Path, saccade: Saccade
) -> None:
    root = tmp_path / "my-images"
    shutil.copytree(recipe.parent / "my-images", root)
    for i in (8, 12, 19):
        truncate(root / "train" / "cat" / f"{i}.png")
    words = [f"data.root={root}", "--out", tmp_path / "run", "--quiet"]
    code, _, err = saccade("train", recipe, *words)
    assert code == 0, err
    code, out, err = saccade(
        "explain", tmp_path / "run", "--data", "--out", tmp_path / "out", "--json"
    )
    assert code == 0, err
    samples = json.loads(out.splitlines()[0])
    run = RunFolder(tmp_path / "run")
    files = load_run_data(run, parts=("train",)).train.files
    shown = {files.names[int(name.removeprefix("train:"))] for name in samples["images"]}
    assert len(shown) == len(samples["classes"]) < 24
    assert not shown & {f"train/cat/{i}.png" for i in (8, 12, 19)}


def test_page_of_loose_runs_has_the_same_counts(
    study: tuple[Path, str, str], tmp_path: Path
) -> None:
    write_report(study[0] / "runs", tmp_path)
    rows = find(collect(study[0] / "runs")).rows
    compared = json.loads((study[0] / "results.json").read_text())["rows"]
    assert [row.accuracy for row in rows] == [row["accuracy"] for row in compared]
    assert "4 of 24 test images could not be read" in (tmp_path / "report.md").read_text()
