"""The words of a page are true of few seeds, and good English of few pairs."""

from dataclasses import replace
from pathlib import Path

import pytest

from saccade.report.claims import Claim
from saccade.report.collect import collect
from saccade.report.findings import find
from saccade.report.words import headline, sentence
from saccade.report.write import write_report
from tests.report.made_runs import make_run, make_study

BOTH = "Images and seeds both count as chance"


def page_of(folder: Path) -> str:
    report = write_report(folder, folder / "report", formats=["md"])
    return (report.out / "report.md").read_text()


def test_one_seed_is_told_in_every_sentence_that_claims(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.5, "taylor": 0.9, "performer": 0.3}, seeds=1)
    found = find(collect(tmp_path))
    more, less = headline(found, "digits").split(". ")[:2]
    assert more.startswith("With one seed, taylor is more accurate than softmax")
    assert less.startswith("With one seed, performer is less accurate than softmax")
    assert all(sentence(claim).endswith(", one seed.") for claim in found.against_baseline)
    page = page_of(tmp_path)
    assert "Only images count as chance: there is one seed." in page
    assert BOTH not in page


def test_several_seeds_are_chance_too(tmp_path: Path) -> None:
    page = page_of(make_study(tmp_path, {"softmax": 0.5, "taylor": 0.9}, seeds=2))
    assert "one seed" not in page
    assert f"{BOTH}." in page


def test_a_pair_has_the_seeds_that_both_have(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.5, "taylor": 0.9}, seeds=2)
    for seed in (1, 7):
        make_run(tmp_path / "runs" / "performer" / f"seed-{seed}", "performer", seed, accuracy=0.8)
    found = find(collect(tmp_path))
    assert {claim.first: claim.seeds for claim in found.against_baseline} == {
        "taylor": 2,
        "performer": 1,
    }
    told = headline(found, "digits")
    assert told.startswith("taylor is more accurate than softmax")
    assert "With one seed, performer is more accurate than softmax" in told
    assert f"{BOTH}, or images alone where two have one seed in common." in page_of(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((-0.003, -0.00301), "they lie −0.3 points from it"),
        ((-0.003, 0.002), "they lie −0.3 to +0.2 points from it"),
    ],
)
def test_a_span_of_nothing_is_one_number(
    tmp_path: Path, sizes: tuple[float, float], told: str
) -> None:
    make_study(tmp_path, {"softmax": 0.5, "taylor": 0.5, "performer": 0.5}, seeds=2)
    found = find(collect(tmp_path))
    base, *others = found.rows
    rows = [
        replace(row, against_baseline=Claim(row.label, "softmax", size, -0.1, 0.1, 0.9, 1.0, 2))
        for row, size in zip(others, sizes, strict=True)
    ]
    assert told in headline(replace(found, rows=[base, *rows]), "digits")


@pytest.mark.parametrize(
    ("accuracies", "told", "title"),
    [
        ((0.9, 0.3), "The one pair without softmax differs.", "The other pair"),
        ((0.9, 0.9), "The one pair without softmax shows no difference.", "The other pair"),
        (
            (0.9, 0.9, 0.9),
            "Among the 3 pairs without softmax, corrected together, none shows a difference.",
            "The other 3 pairs",
        ),
        (
            (0.9, 0.9, 0.3),
            "Among the 3 pairs without softmax, corrected together, 2 of them differ.",
            "The other 3 pairs",
        ),
    ],
)
def test_pairs_are_counted_in_english(
    tmp_path: Path, accuracies: tuple[float, ...], told: str, title: str
) -> None:
    names = ("taylor", "performer", "linear")[: len(accuracies)]
    others = dict(zip(names, accuracies, strict=True))
    page = page_of(make_study(tmp_path, {"softmax": 0.6, **others}, seeds=2))
    assert told in page
    assert title in page


@pytest.mark.parametrize(
    ("speed", "told"),
    [(2000.0, "The ring marks the front"), (500.0, "Rings and the dashed line mark the front")],
)
def test_a_front_of_one_has_no_line(tmp_path: Path, speed: float, told: str) -> None:
    make_run(tmp_path / "a", "softmax", accuracy=0.5, img_per_s=1000)
    make_run(tmp_path / "b", "taylor", accuracy=0.9, img_per_s=speed)
    figure = next(line for line in page_of(tmp_path).splitlines() if "throughput, img/s" in line)
    assert told in figure
