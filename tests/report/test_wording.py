"""The words of a page are true of few seeds, and good English of few pairs."""

from dataclasses import replace
from pathlib import Path

import pytest

from saccade.report.collect import collect
from saccade.report.findings import find
from saccade.report.text import headline, sentence
from saccade.report.write import write_report
from saccade.results import Claim
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


def test_one_learning_rate_for_all_attentions_is_told(tmp_path: Path) -> None:
    """Of runs that no comparison made as well; not of runs whose rates differ."""
    told = "for all attentions, tuned for none of them"
    same = make_study(tmp_path / "same", {"softmax": 0.5, "taylor": 0.9}, seeds=1)
    assert f"one learning rate (0.003) {told}" in page_of(same)
    make_run(same / "runs" / "other", "performer", overrides=["optim.lr=0.5"])
    assert told not in page_of(same)
    alone = make_study(tmp_path / "alone", {"softmax": 0.5}, seeds=2)
    assert told not in page_of(alone)


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
        "taylor": (0, 1),
        "performer": (1,),
    }
    told = headline(found, "digits")
    assert told.startswith("taylor is more accurate than softmax")
    assert "With one seed, performer is more accurate than softmax" in told
    assert f"{BOTH}, or images alone where two have one seed in common." in page_of(tmp_path)


def make_seeds(folder: Path, **seeds: tuple[int, ...]) -> Path:
    """Runs of each attention with seeds of its own."""
    for place, (attention, own) in enumerate(seeds.items()):
        for seed in own:
            accuracy = 0.5 + 0.2 * place
            make_run(folder / attention / str(seed), attention, seed, accuracy=accuracy)
    return folder


def test_where_rows_have_other_seeds_the_table_says_which_count(tmp_path: Path) -> None:
    page = page_of(make_seeds(tmp_path, softmax=(0, 1), taylor=(1, 2), performer=(7,)))
    header = next(line for line in page.splitlines() if line.startswith("| attention"))
    place = header.split("|").index(" shared seeds ")
    shown = {
        row.split("|")[1].strip(): row.split("|")[place].strip()
        for row in page.splitlines()
        if row.startswith(("| softmax |", "| taylor |", "| performer |"))
        and row.count("|") == header.count("|")
    }
    assert shown == {"softmax": "–", "taylor": "1", "performer": "–"}
    assert "over the seeds that a row shares with softmax" in page
    assert "beside it; performer shares none." in page
    assert "intervals over new images, and over new seeds where there are several." in page
    assert "chance: none has more than one seed in common with softmax." in page
    assert "there is one seed" not in page


def test_where_rows_have_the_same_seeds_nothing_is_said_of_them(tmp_path: Path) -> None:
    page = page_of(make_seeds(tmp_path, softmax=(0, 1), taylor=(0, 1)))
    assert "shared seeds" not in page
    assert "shares with" not in page


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ({"softmax": (0,), "taylor": (1,)}, "the two have no seed in common."),
        (
            {"softmax": (0,), "taylor": (1,), "performer": (2,)},
            "none has a seed in common with softmax.",
        ),
    ],
)
def test_no_seed_in_common_is_no_lack_of_predictions(
    tmp_path: Path, seeds: dict[str, tuple[int, ...]], told: str
) -> None:
    found = find(collect(make_seeds(tmp_path, **seeds)))
    assert headline(found, "digits").endswith(f"no difference can be claimed: {told}")


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
        replace(
            row, against_baseline=Claim(row.label, "softmax", size, -0.1, 0.1, 0.9, 1.0, (0, 1))
        )
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
            "Among the 3 pairs without softmax, none shows a difference.",
            "The other 3 pairs",
        ),
        (
            (0.9, 0.9, 0.3),
            "Among the 3 pairs without softmax, 2 of them differ.",
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
    [(2000.0, "The ring marks the Pareto"), (500.0, "Rings and the dashed line mark the Pareto")],
)
def test_a_front_of_one_has_no_line(tmp_path: Path, speed: float, told: str) -> None:
    make_run(tmp_path / "a", "softmax", accuracy=0.5, img_per_s=1000)
    make_run(tmp_path / "b", "taylor", accuracy=0.9, img_per_s=speed)
    figure = next(line for line in page_of(tmp_path).splitlines() if "throughput, img/s" in line)
    assert told in figure


def trials(folder: Path, *settings: tuple[float, list[str]]) -> str:
    """The headline of a search: one attention, validated and not tested."""
    for number, (accuracy, words) in enumerate(settings):
        untested = {"test_accuracy": None, "val_accuracy_best": accuracy}
        place = folder / f"trial-{number}"
        make_run(place, summary=untested, keep_predictions=False, overrides=words)
    return headline(find(collect(folder)), "digits")


@pytest.mark.parametrize(
    ("accuracies", "told"),
    [
        ((0.1, 0.1), "Both have the same validation accuracy on digits, 10.0 %, and no"),
        ((0.1, 0.1, 0.1), "All 3 have the same validation accuracy on digits, 10.0 %, and no"),
        (
            (0.1, 0.30001, 0.3),
            "lr=2 and lr=3 share the highest validation accuracy on digits, 30.0 %, but no",
        ),
        ((0.1, *[0.3] * 5), "5 of 6 share the highest validation accuracy on digits, 30.0 %, but"),
        ((0.1, 0.3), "lr=2 has the highest validation accuracy on digits, 30.0 %, but no"),
    ],
)
def test_a_tie_has_no_winner(tmp_path: Path, accuracies: tuple[float, ...], told: str) -> None:
    rates = [(own, [f"optim.lr={place}"]) for place, own in enumerate(accuracies, start=1)]
    assert trials(tmp_path, *rates).replace("\u00a0", " ").startswith(told)


def test_a_name_that_tells_some_of_the_keys_is_no_cause(tmp_path: Path) -> None:
    first = ["optim.lr=0.1", "optim.weight_decay=0.1", "train.batch_size=32"]
    second = ["optim.lr=0.2", "optim.weight_decay=0.2", "train.batch_size=64"]
    told = trials(tmp_path / "three", (0.5, first), (0.6, second))
    assert told.startswith("The set-up called lr=0.2 has the highest")
    assert told.endswith(
        "The runs differ in optim.lr, optim.weight_decay and train.batch_size; the names of the "
        "set-ups show only some of these."
    )
    told = trials(tmp_path / "one", (0.5, first[:1]), (0.6, second[:1]))
    assert told.startswith("lr=0.2 has the highest")
    assert told.endswith("The runs differ in optim.lr.")
