"""The numbers are those of the runs, and nothing is claimed that they do not carry."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from saccade.report.collect import collect
from saccade.report.environment import differences_table
from saccade.report.findings import Findings, find
from saccade.report.groups import label_groups
from saccade.report.text import headline, points, sentence, significant
from saccade.report.write import write_report
from saccade.results import Claim
from saccade.stats import (
    accuracy_interval,
    corrected_p_values,
    paired_difference,
    seed_scatter,
)
from tests.report.made_runs import make_run, make_study, predictions, write_record


def found_in(folder: Path) -> Findings:
    return find(collect(folder))


def right(accuracy: float, seeds: int = 3) -> np.ndarray:
    arrays = [predictions(accuracy, seed, images=400, classes=4) for seed in range(seeds)]
    return np.stack([own["target"] == own["predicted"] for own in arrays])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """One attention is dead, two are alike."""
    folder = tmp_path_factory.mktemp("study")
    return found_in(make_study(folder, {"softmax": 0.9, "taylor": 0.9025, "performer": 0.3}))


def test_rows_hold_the_statistics_of_the_predictions(study: Findings) -> None:
    softmax, taylor, dead = study.rows
    expected = accuracy_interval(right(0.9))
    assert (softmax.accuracy, softmax.accuracy_low, softmax.accuracy_high) == (
        expected.mean,
        expected.low,
        expected.high,
    )
    levels = (0.9, 0.9025, 0.3)
    scatter = seed_scatter([right(level) for level in levels])
    differences = [
        paired_difference(
            right(levels[a]), right(levels[b]), shared=scatter.shared, own=scatter.of_pair(a, b)
        )
        for a, b in ((1, 0), (2, 0), (1, 2))
    ]
    corrected = corrected_p_values(differences)
    claims = [*(row.against_baseline for row in (taylor, dead)), *study.others]
    assert [claim.difference for claim in claims] == [own.mean for own in differences]
    assert [claim.p_corrected for claim in claims] == corrected
    assert softmax.against_baseline is None
    assert study.images == 400


def test_a_run_repeated_with_its_seed_is_no_new_evidence(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "first", seed=0)
    alone = found_in(tmp_path)
    make_run(tmp_path / "runs" / "again", seed=0)
    twice = found_in(tmp_path)
    assert twice.images == alone.images == 400
    interval = [(row.accuracy_low, row.accuracy_high) for row in twice.rows]
    assert interval == [(row.accuracy_low, row.accuracy_high) for row in alone.rows]


def test_speeds_of_runs_that_shared_a_device_are_not_compared(tmp_path: Path) -> None:
    for speed in ("own", "alone", "shared"):
        folder = make_study(tmp_path / speed, {"softmax": 0.9}, img_per_s=1000)
        make_study(folder, {"taylor": 0.9}, img_per_s=2000)
        noted = {"softmax": 300.0, "taylor": 200.0}
        rows = [
            {"attention": name, "img_per_s": value, "seconds_per_epoch": 600 / value}
            for name, value in noted.items()
        ]
        write_record(folder / "results.json", baseline="softmax", rows=rows, speed=speed)
        report = tmp_path / f"{speed}-report"
        write_report(folder, report)
        drawn = {file.stem for file in (report / "figures").glob("*.svg")}
        assert ("accuracy_throughput" in drawn) is (speed != "shared")
        assert ("accuracy_over_time" in drawn) is (speed != "shared")
        told = "epochs times the s/epoch of the summary" in (report / "report.md").read_text()
        assert told is (speed == "alone")
        found = found_in(folder)
        assert found.fair_speed is (speed != "shared")
        assert ["img_per_s" in row.best for row in found.rows] == [False, speed == "own"]
        shown = {row.label: row.img_per_s for row in found.rows}
        assert (shown == noted) is (speed == "alone")


def test_a_dead_attention_is_called_worse_and_a_small_gap_is_not(study: Findings) -> None:
    taylor, dead = study.against_baseline
    assert not taylor.holds
    assert dead.holds
    assert "no difference can be claimed" in sentence(taylor)
    assert sentence(dead).startswith("performer is worse than softmax: −60.0 points [")
    told = headline(study, "digits")
    assert "performer is less accurate than softmax" in told
    assert "For taylor no difference can be claimed" in told


def test_equal_differences_are_told_once(study: Findings) -> None:
    numbers = {
        "low": -0.9,
        "high": -0.1,
        "p_value": 0.001,
        "p_corrected": 0.002,
        "seeds": (0, 1, 2),
    }
    base, *others = study.rows
    rows = [
        replace(row, against_baseline=Claim(row.label, "softmax", size, **numbers))
        for row, size in zip(others, (-0.2, -0.20004), strict=True)
    ]
    told = headline(replace(study, rows=[base, *rows]), "digits")
    assert "are less accurate than softmax" in told
    assert "by 20.0 points." in told


def test_a_claim_goes_by_the_corrected_value() -> None:
    numbers = {"difference": 0.01, "low": 0.001, "high": 0.02, "p_value": 0.01, "seeds": (0, 1, 2)}
    assert Claim("a", "b", **numbers, p_corrected=0.049).holds
    assert not Claim("a", "b", **numbers, p_corrected=0.051).holds


def test_all_pairs_of_a_page_are_one_family(tmp_path: Path) -> None:
    """More pairs without the baseline make the correction of those with it stricter."""
    accuracies = {"softmax": 0.9, "taylor": 0.87, "performer": 0.89, "linear": 0.88}
    few = found_in(make_study(tmp_path / "few", dict(list(accuracies.items())[:2]), seeds=1))
    many = found_in(make_study(tmp_path / "many", accuracies, seeds=1))
    (alone,), among = few.against_baseline, many.against_baseline[0]
    assert len(many.against_baseline) + len(many.others) == 6
    assert among.p_value == pytest.approx(alone.p_value)
    lowest = min((*many.against_baseline, *many.others), key=lambda claim: claim.p_value)
    assert lowest.p_corrected == pytest.approx(6 * lowest.p_value)
    assert among.p_corrected > 3 * alone.p_corrected


def test_nothing_is_marked_best_by_chance(study: Findings) -> None:
    assert [set(row.best) for row in study.rows] == [set(), set(), set()]


def test_a_clear_lead_is_marked(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.5, "taylor": 0.95}, img_per_s=1000)
    for seed in range(3):
        place = tmp_path / "runs" / "performer" / f"seed-{seed}"
        costs = {"peak_memory_mib": 50.0 + seed, "flops": 1_000_000}
        make_run(place, "performer", seed, accuracy=0.5, img_per_s=2000, summary=costs)
    best = {row.label: row.best for row in found_in(tmp_path).rows}
    assert best["taylor"] == {"accuracy"}
    assert best["performer"] == {"img_per_s", "seconds_per_epoch", "peak_memory_mib", "flops"}
    assert best["softmax"] == set()


def test_one_run_each_is_not_enough_to_call_a_time_best(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "softmax", img_per_s=1000)
    make_run(tmp_path / "b", "taylor", img_per_s=5000)
    assert [row.best for row in found_in(tmp_path).rows] == [frozenset(), frozenset()]


def test_other_images_cannot_be_paired(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "softmax")
    make_run(tmp_path / "b", "taylor", images=200)
    found = found_in(tmp_path)
    assert found.against_baseline == []
    assert "kept no predictions of the same images" in headline(found, "digits")


def test_nothing_is_ranked_across_data_sets(tmp_path: Path) -> None:
    """Not even where the targets happen to be the same, as those of sorted folders can be."""
    make_study(tmp_path, {"softmax": 0.5, "taylor": 0.95}, seeds=2)
    for seed in range(2):
        place = tmp_path / "shapes" / f"seed-{seed}"
        costs = {"parameters": 10, "peak_memory_mib": 1.0 + seed}
        words = ["data.name=shapes"]
        make_run(place, "taylor", seed, accuracy=0.7, summary=costs, overrides=words)
    found = found_in(tmp_path)
    assert found.datasets == ["digits", "shapes"]
    assert [row.label for row in found.rows] == [
        *("softmax (digits)", "taylor (digits)", "taylor (shapes)"),
    ]
    assert found.against_baseline == found.others == []
    assert [row.best for row in found.rows] == [frozenset()] * 3
    report = write_report(tmp_path, tmp_path / "report")
    assert report.headline.startswith(
        "The runs are on two data sets, digits and shapes. Accuracies on different data cannot "
        "be compared: nothing is ranked and no difference is claimed here."
    )
    drawn = {file.stem for file in (report.out / "figures").glob("*.svg")}
    assert "accuracy_over_epochs" in drawn
    assert not {"differences", "accuracy_memory", "accuracy_throughput", "class_accuracy"} & drawn
    page = (report.out / "report.md").read_text()
    assert "What can be claimed" not in page
    assert "different data, so classes are not compared" in page
    assert "judged" not in page


def test_set_ups_on_one_data_set_stay_together(tmp_path: Path) -> None:
    for name, lr, accuracy in (
        *(("digits", 0.1, 0.5), ("shapes", 0.1, 0.6)),
        *(("digits", 0.2, 0.7), ("shapes", 0.2, 0.8)),
    ):
        words = [f"data.name={name}", f"optim.lr={lr}"]
        make_run(tmp_path / f"{name}-{lr}", "taylor", accuracy=accuracy, overrides=words)
    assert [row.label for row in found_in(tmp_path).rows] == [
        *("digits lr=0.2", "digits lr=0.1", "shapes lr=0.2", "shapes lr=0.1"),
    ]


def test_folders_of_other_classes_are_other_data(tmp_path: Path) -> None:
    """Where a folder lies does not matter, and what is in it does."""
    pets, cars = ("cat", "dog", "eel", "owl"), ("audi", "fiat", "lada", "opel")
    for number, (root, classes) in enumerate(
        [("/a/pets", pets), ("/b/pets-copy", pets), ("/a/cars", cars), ("/b/cars", cars[::-1])]
    ):
        words = ["data.name=folder", f"data.root={root}"]
        make_run(tmp_path / str(number), seed=number, classes=classes, overrides=words)
    found = found_in(tmp_path)
    assert found.datasets == ["cars", "cars #2", "pets / pets-copy"]
    assert [(row.label, row.runs) for row in found.rows] == [
        *(("cars", 1), ("cars #2", 1), ("pets / pets-copy", 2)),
    ]


def test_folds_of_a_seed_are_one_test_set(tmp_path: Path) -> None:
    for attention, accuracy in (("softmax", 0.9), ("taylor", 0.5)):
        for fold in range(2):
            place = tmp_path / "runs" / attention / "seed-0" / f"fold-{fold}"
            cut = ["data.folds=2", f"data.fold={fold}"]
            make_run(place, attention, accuracy=accuracy, overrides=cut, images=100 + fold)
    found = found_in(tmp_path)
    assert [row.label for row in found.rows] == ["softmax", "taylor"]
    assert found.images == 201
    assert found.measure == "held-out accuracy"
    assert found.rows[1].against_baseline.holds
    assert found.differing == []


def test_results_fill_in_what_runs_do_not_have(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, keep_predictions=False)
    noted = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.85, "latency_ms": 2.5}
    change = {"difference": -0.1, "difference_low": -0.2, "difference_high": -0.01}
    row = {**noted, **change, "p_value": 0.01, "p_corrected": 0.02, "approximation_error": 0.1}
    write_record(
        tmp_path / "results.json",
        baseline="softmax",
        rows=[{"attention": "taylor", **row, "latency_batch": 32}, "nonsense"],
    )
    found = found_in(tmp_path)
    taylor = found.rows[1]
    assert (taylor.accuracy_low, taylor.accuracy_high, taylor.latency_ms) == (0.7, 0.85, 2.5)
    assert taylor.against_baseline.p_corrected == 0.02
    assert taylor.approximation_error == 0.1
    assert found.latency_batch == 32
    assert found.rows[0].accuracy == pytest.approx(0.9)
    assert found.rows[0].accuracy_low is None


def test_runs_that_differ_in_more_than_the_attention(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "softmax")
    make_run(tmp_path / "b", "taylor", overrides=["optim.lr=0.5"])
    found = found_in(tmp_path)
    assert found.differing == ["optim.lr"]
    assert [row.label for row in found.rows] == ["softmax", "taylor"]
    assert "differ in more than the attention (optim.lr)" in headline(found, "digits")


def test_set_ups_of_one_attention_are_told_apart_and_sorted(tmp_path: Path) -> None:
    for lr, accuracy in ((0.1, 0.7), (0.2, 0.9), (0.3, 0.8)):
        words = [f"optim.lr={lr}"]
        for seed in range(2):
            place = tmp_path / f"{lr}-{seed}"
            make_run(place, "taylor", seed, accuracy=accuracy, overrides=words)
    found = found_in(tmp_path)
    assert [row.label for row in found.rows] == ["lr=0.2", "lr=0.3", "lr=0.1"]
    assert [group.label for group in found.groups] == ["lr=0.2", "lr=0.3", "lr=0.1"]
    assert [row.runs for row in found.rows] == [2, 2, 2]


def test_mixed_runs_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    """Two recipes differ in dozens of keys; one or two are enough to know which is which."""
    other = ["optim.lr=0.1", "train.epochs=9", "augment.mixup=0.2", "optim.weight_decay=0.3"]
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "softmax", seed)
        make_run(tmp_path / f"b{seed}", "softmax", seed, overrides=other)
        make_run(tmp_path / f"c{seed}", "taylor", seed, overrides=other)
    deep = [*other, "model.overrides.depth=9"]
    make_run(tmp_path / "d", "taylor", overrides=[*deep, "data.name=shapes"])
    make_run(tmp_path / "e", "taylor", overrides=deep)
    found = found_in(tmp_path)
    assert [(row.label, row.runs) for row in found.rows] == [
        ("softmax (digits lr=0.003)", 2),
        ("softmax (digits lr=0.1)", 2),
        ("taylor (digits depth=3)", 2),
        ("taylor (digits depth=9)", 1),
        ("taylor (shapes)", 1),
    ]
    assert found.differing[:3] == ["data.name", "model.overrides.depth", "optim.lr"]
    table = differences_table(found.groups, found.differing)
    assert [column.title for column in table.columns] == ["what", *(r.label for r in found.rows)]
    assert [cell.text for cell in table.rows[1]] == [
        "model.overrides.depth",
        *("3", "3", "3", "9", "9"),
    ]


def labels(attentions: list[str], settings: list[dict[str, object]]) -> list[str]:
    return [label.text for label in label_groups(attentions, settings)]


def test_labels_are_never_the_same() -> None:
    alike = [{"optim.lr": 0.1}, {"optim.lr": 0.1 + 1e-12}, {"optim.lr": None, "train.ema": True}]
    assert labels(["taylor"] * 3, alike) == ["lr=0.1 #1", "lr=0.1 #2", "lr=unset"]
    assert labels(["softmax", "taylor"], alike[:2]) == ["softmax", "taylor"]
    named = [{"optim.name": "muon", "augment.flip": True}, {"optim.name": "adamw"}]
    assert labels(["taylor"] * 2, named) == ["optim=muon", "optim=adamw"]


def test_more_groups_than_keys_go_down_the_table(tmp_path: Path) -> None:
    for lr in (0.1, 0.2, 0.3):
        make_run(tmp_path / str(lr), overrides=[f"optim.lr={lr}"])
    found = found_in(tmp_path)
    table = differences_table(found.groups, found.differing)
    assert [column.title for column in table.columns] == ["what", "optim.lr"]
    assert [row[1].text for row in table.rows] == ["0.1", "0.2", "0.3"]


def test_baseline_and_order_are_the_studys(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.9}, seeds=1)
    write_record(
        tmp_path / "study.json", attentions=["taylor", "softmax"], seeds=[0], baseline="taylor"
    )
    found = found_in(tmp_path)
    assert [row.label for row in found.rows] == ["taylor", "softmax"]
    assert found.baseline == "taylor"


def test_numbers_in_words() -> None:
    assert [points(value) for value in (0.0123, -0.0004, -0.05)] == ["+1.2", "0.0", "−5.0"]
    values = (None, 0.0, 0.00001234, 2.2, 99.96, 1234.5, 125866.0)
    told = ["–", "0.00", "1.23e-05", "2.20", "100", "1,234", "125,866"]
    assert [significant(value) for value in values] == told
