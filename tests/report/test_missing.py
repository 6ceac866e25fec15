"""An attention without a run is told of, and a baseline without one is not replaced in silence."""

from pathlib import Path

import pytest

from saccade.report.collect import collect
from saccade.report.findings import Findings, find
from saccade.report.text import headline
from saccade.report.write import write_report
from saccade.results import MAX_PAIRED
from tests.report.made_runs import make_run, make_study, write_record

ATTENTIONS = ("softmax", "taylor", "performer", "linear")
REASONS = "the reasons are listed at the end."


def make_failed(folder: Path, attention: str, seeds: int = 2, state: str = "failed") -> None:
    for seed in range(seeds):
        run = make_run(folder / "runs" / attention / f"seed-{seed}", attention, seed)
        run.write("status.json", {"state": state, "epoch": 1, "message": "step 3 is not finite"})
        (run.path / "summary.json").unlink()


def announce(folder: Path, attentions: tuple[str, ...], baseline: str) -> Path:
    write_record(
        folder / "study.json", attentions=list(attentions), seeds=[0, 1], baseline=baseline
    )
    return folder


def half_failed(folder: Path, accuracies: dict[str, float], baseline: str = "softmax") -> Path:
    """A comparison of these and of taylor, which failed."""
    make_study(folder, accuracies, seeds=2)
    make_failed(folder, "taylor")
    return announce(folder, (*accuracies, "taylor"), baseline)


def page_of(folder: Path) -> str:
    report = write_report(folder, folder / "report", formats=["md"])
    return (report.out / "report.md").read_text()


def told_of(folder: Path) -> tuple[Findings, str]:
    found = find(collect(folder))
    return found, headline(found, "digits")


def test_a_wholly_failed_attention_is_in_title_and_headline(tmp_path: Path) -> None:
    folder = half_failed(tmp_path, {"softmax": 0.9, "performer": 0.3})
    found, told = told_of(folder)
    assert (found.failed, found.unfinished, found.baseline) == (["taylor"], [], "softmax")
    assert told.startswith(f"Every run of taylor failed; {REASONS} performer is less accurate than")
    page = page_of(folder)
    assert page.startswith("# Two of three attentions on digits\n")
    assert "| taylor/seed-1 | failed after epoch 1 of 2: step 3 is not finite |" in page


def test_one_run_that_is_left_is_enough(tmp_path: Path) -> None:
    folder = half_failed(tmp_path, {"softmax": 0.9})
    make_run(folder / "runs" / "taylor" / "seed-7", "taylor", 7)
    found, told = told_of(folder)
    assert found.failed == found.unfinished == []
    assert "failed" not in told


@pytest.mark.parametrize("state", ["running", "none"])
def test_what_is_not_done_has_not_failed(tmp_path: Path, state: str) -> None:
    make_study(tmp_path, {"softmax": 0.9}, seeds=2)
    if state == "running":
        make_failed(tmp_path, "taylor", seeds=1, state=state)
    _, told = told_of(announce(tmp_path, ATTENTIONS[:2], "softmax"))
    assert told.startswith(f"No run of taylor is finished; {REASONS} softmax reaches")


def test_many_without_runs_are_counted(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9}, seeds=2)
    _, told = told_of(announce(tmp_path, ("softmax", *"abcdefg"), "softmax"))
    assert told.startswith("No run of a, b, c, d and 3 more is finished")


def test_a_baseline_without_runs_is_not_replaced(tmp_path: Path) -> None:
    accuracies = {"softmax": 0.9, "performer": 0.3, "linear": 0.9}
    folder = half_failed(tmp_path, accuracies, baseline="taylor")
    found, told = told_of(folder)
    assert found.baseline is None
    assert found.against_baseline == []
    assert told.startswith(
        f"Every run of taylor failed; {REASONS} taylor is the baseline, and without a run of it "
        "the others are compared pair by pair. softmax and linear share the highest test accuracy "
        "on digits, 90.0\u00a0%; 2 of 3 pairs differ."
    )
    pairs = [(claim.first, claim.second) for claim in found.others]
    assert pairs == [("softmax", "performer"), ("softmax", "linear"), ("performer", "linear")]
    assert max(claim.p_corrected / claim.p_value for claim in found.others if claim.holds) >= 2
    page = page_of(folder)
    assert "points to" not in page
    assert "All 3 pairs on this page are one family" in page
    assert "Images and seeds both count as chance." in page
    assert "Among the 3 pairs, 2 of them differ." in page
    assert "**The 3 pairs**" in page


@pytest.mark.parametrize(
    ("performer", "told"),
    [
        (0.9, "No difference in accuracy between softmax and performer (90.0 %) on digits can be"),
        (0.3, "softmax is more accurate than performer (30.0 %) on digits, by 60.0 points."),
    ],
)
def test_the_one_pair_that_is_left(tmp_path: Path, performer: float, told: str) -> None:
    folder = half_failed(tmp_path, {"softmax": 0.9, "performer": performer}, baseline="taylor")
    assert told in told_of(folder)[1].replace("\u00a0", " ")
    assert "**The pair**" in page_of(folder)


def test_one_attention_is_left_without_its_baseline(tmp_path: Path) -> None:
    folder = half_failed(tmp_path, {"softmax": 0.9}, baseline="taylor")
    assert "without a run of it nothing is compared. softmax reaches" in told_of(folder)[1]
    assert page_of(folder).startswith("# One of two attentions on digits\n")


def test_no_difference_to_a_baseline_that_is_not_here(tmp_path: Path) -> None:
    """Its results are older than the loss of its runs; other runs kept no predictions."""
    make_study(tmp_path, {"softmax": 0.9, "performer": 0.3}, seeds=2, keep_predictions=False)
    change = {"difference": -0.1, "difference_low": -0.2, "difference_high": -0.01}
    row = {"attention": "performer", **change, "p_value": 0.01, "p_corrected": 0.02}
    write_record(tmp_path / "results.json", baseline="taylor", rows=[row])
    found, told = told_of(tmp_path)
    assert found.against_baseline == []
    assert told.startswith("taylor is the baseline, and without a run of it nothing is compared. ")
    assert told.endswith(
        "no difference can be claimed: the runs kept no predictions of the same images."
    )


def test_too_many_to_pair(tmp_path: Path) -> None:
    for place in range(MAX_PAIRED + 1):
        make_run(tmp_path / "runs" / f"a{place}", overrides=[f"optim.lr={place + 1}e-3"])
    write_record(tmp_path / "study.json", baseline="taylor")
    assert "more than 12 are compared with a baseline alone" in told_of(tmp_path)[1]


def test_a_baseline_goes_by_its_attention_where_its_name_is_longer(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=2)
    make_run(tmp_path / "runs" / "taylor" / "seed-9", "taylor", 9, overrides=["optim.lr=0.5"])
    found, _ = told_of(announce(tmp_path, ATTENTIONS[:2], "taylor"))
    assert found.baseline == "taylor (lr=0.003)"
