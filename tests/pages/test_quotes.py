"""Figures that lessons and guides quote from results are those of the result files."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def text(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text().split())


@pytest.fixture(scope="module")
def compared():
    path = RESULTS / "compare_vit_cifar10_h200_202611" / "results.json"
    return {row["attention"]: row for row in json.loads(path.read_text())["rows"]}


def percent(row: dict) -> str:
    return f"{100 * row['accuracy']:.2f} %"


@pytest.fixture(scope="module")
def crossings():
    return crossings_of("fused")


def crossings_of(form: str) -> dict[int, str]:
    """From how many tokens a form of linear time beat softmax on the H200, by head dim."""
    lines = (RESULTS / "crossover" / "crossover_h200_202611.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {
        int(row[2]): row[4].partition(" ")[0]
        for row in rows
        if row[1:2] == [f"efficient ({form}) against softmax"] and row[4][0].isdigit()
    }


@pytest.fixture(scope="module")
def gains():
    """By how much a training step of ViT-S is faster with TaylorShift, by tokens."""
    rows = json.loads((RESULTS / "model" / "model_h200_202611.json").read_text())["rows"]
    return {
        row["tokens"]: row["speedup_over_softmax"]
        for row in rows
        if row["case"]["attention"] == "taylorshift" and row["case"]["direction"] == "training"
    }


def test_the_lesson_of_learned_features(compared):
    learned, softmax = compared["performer_ftheta"], compared["softmax"]
    page = text("lessons/11-learned-kernel.md")
    assert f"`performer_ftheta` reaches {percent(learned)}, softmax {percent(softmax)}" in page
    times = [row["seconds_per_epoch"] for row in (learned, softmax)]
    assert f"an epoch takes {times[0]:.2f} s against {times[1]:.2f} s" in page


def test_the_lesson_of_random_features(compared):
    assert "random features of simpler curves (ReLU, GELU) do better than FAVOR+" in text(
        "lessons/10-random-features.md"
    )
    favor = compared["performer"]["accuracy"]
    assert all(compared[f"performer_{phi}"]["accuracy"] > favor for phi in ("relu", "gelu"))


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("taylor", "taylor"),
        ("taylorshift", "taylorshift"),
        ("performer-favor", "performer"),
        ("performer-relu", "performer_relu"),
        ("performer-exp", "performer_exp"),
        ("performer-ftheta", "performer_ftheta"),
    ],
)
def test_the_page_of_a_mechanism(page, name, compared):
    assert f"reaches {percent(compared[name])}" in text(f"mechanisms/{page}.md")


def test_the_page_of_gelu_and_elu(compared):
    gelu, elu, softmax = (
        percent(compared[name]) for name in ("performer_gelu", "performer_elu", "softmax")
    )
    page = text("mechanisms/performer-gelu-elu.md")
    assert f"GELU reaches {gelu}, ELU {elu} and softmax {softmax}" in page


def test_the_lesson_of_training():
    """The lesson rounds the accuracy in the table of results."""
    (accuracy,) = re.findall(r"`vit-micro-cifar10`.*?\| 100 \| (\d\d\.\d\d) %", text("results.md"))
    assert f"It reaches {float(accuracy):.1f} % in 100 epochs" in text("lessons/07-training.md")


def test_the_lesson_of_limits(crossings, gains):
    page = text("lessons/12-limits.md")
    assert f"| tokens | {' | '.join(crossings[d] for d in (16, 32, 64, 128))} |" in page
    assert f"{gains[4096]:.2f} times at 4,096 tokens and {gains[16384]:.1f} times at 16,384" in page


def test_the_pages_that_name_a_crossing(crossings):
    page = text("lessons/09-taylor.md")
    assert f"crossing was at {crossings[32]} tokens" in page
    published = int(crossings_of("published")[32].replace(",", ""))
    assert f"only from about {round(published, -2):,} tokens at D = 32" in page
    sentence = f"at {crossings[32]} tokens with a head dimension of 32, and at {crossings[64]} with"
    assert sentence in text("guides/high-resolution.md")
    listed = ", ".join(crossings[d] for d in (16, 32, 64)) + f" and {crossings[128]} tokens"
    assert listed in text("results.md")
    assert f"| {' | '.join(crossings[d] for d in (16, 32, 64, 128))} |" in text("analyze.md")


def test_the_gains_of_whole_models(gains):
    page = text("results.md")
    assert f"is {gains[4096]:.2f} times as fast with `taylorshift`" in page
    assert f"and {gains[16384]:.1f} times at 16,384 tokens" in page
