"""Figures show what they should and fit into a page."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from saccade.layers import ATTENTIONS, Attention
from saccade.plotting import GRID, PIXELS_PER_INCH
from saccade.report.classes import (
    WRONG,
    ClassCounts,
    class_accuracy,
    confusion,
    shaded,
    spread_classes,
)
from saccade.report.collect import collect
from saccade.report.figures import (
    accuracy_over_time,
    course,
    cut_accuracy,
    epoch_curves,
    pareto,
    pareto_front,
)
from saccade.report.findings import find
from saccade.report.groups import Group, group_runs
from saccade.report.render import VARIABLES, as_html, inline_svg
from saccade.report.sections import compose
from saccade.report.style import Drawing, axes_style, draw, series_of
from saccade.report.write import write_report
from tests.report.made_runs import make_run, make_study

Points = st.dictionaries(
    st.text(alphabet="abcdefgh", min_size=1, max_size=2),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    min_size=1,
)


@given(Points)
@settings(deadline=None)
def test_the_front_is_what_nothing_beats(points: dict[str, tuple[int, int]]) -> None:
    front = {points[name] for name in pareto_front(points)}
    unbeaten = {
        (cost, value)
        for cost, value in points.values()
        if not any(
            (other <= cost and worth >= value) and (other, worth) != (cost, value)
            for other, worth in points.values()
        )
    }
    assert front == unbeaten


def groups_of(folder: Path) -> list[Group]:
    return group_runs(collect(folder).runs, [])[0]


def test_course_is_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.6, 0.7, 0.95)):
        make_run(tmp_path / str(seed), seed=seed, accuracy=accuracy)
    found = course(groups_of(tmp_path)[0], "val_accuracy")
    assert found.epochs == [1, 2]
    assert found.seconds == [2.0, 4.0]
    assert found.mean == pytest.approx([0.55, 0.65])
    assert found.low == pytest.approx([0.4, 0.5])
    assert found.high == pytest.approx([0.75, 0.85])


def test_course_of_what_was_not_measured(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    groups = groups_of(tmp_path)
    assert course(groups[0], "val_loss") is None
    assert epoch_curves(groups, series_of(["softmax"]), "val_loss", "loss") is None


def drawn_curves(folder: Path) -> Drawing:
    groups = groups_of(folder)
    looks = series_of([group.label for group in groups])
    drawing = epoch_curves(groups, looks, "val_accuracy", "validation accuracy")
    assert drawing is not None
    return drawing


def epochs_cut(drawing: Drawing) -> list[int]:
    """The places of the epochs at which the shade of the only group leaves the axes."""
    bottom = float(re.search(r'id="patch_2">\s*<path d="M [\d.]+ ([\d.]+)', drawing.svg)[1])
    shade = re.search(r'id="FillBetween[^>]*>\s*<path d="([^"]+)"', drawing.svg)[1]
    lowest: dict[str, float] = {}
    for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", shade):
        lowest[x] = max(float(y), lowest.get(x, 0.0))
    return [place for place, x in enumerate(sorted(lowest, key=float)) if lowest[x] > bottom]


def test_after_a_third_of_the_epochs_no_run_leaves_the_axes(tmp_path: Path) -> None:
    """The mean of the fifth epoch is far above its lowest run."""
    steady = (0.1, 0.5, 0.9, 0.9, 0.9, 0.9)
    make_run(tmp_path / "steady", validated=steady)
    make_run(tmp_path / "dips", seed=1, validated=(*steady[:4], 0.6, 0.9))
    assert epochs_cut(drawn_curves(tmp_path)) == [0, 1]
    assert cut_accuracy(groups_of(tmp_path)) == pytest.approx(0.6 - 0.06 * 0.3)


def test_a_caption_tells_of_cut_epochs_where_there_are_some(tmp_path: Path) -> None:
    told = "The axis starts at 89.5 %; early epochs are below it."
    for name, first in (("cut", 0.3), ("whole", 0.897)):
        make_run(tmp_path / name, validated=(first, 0.9, 0.95))
        report = write_report(tmp_path / name, tmp_path / f"{name}-report", formats=["md"])
        text = (report.out / "report.md").read_text().replace("\u00a0", " ")
        assert text.count(told) == {"cut": 2, "whole": 0}[name]


def ticks(drawing: Drawing, label: str) -> list[str]:
    """The tick labels that stand before an axis's label."""
    texts = re.findall(r">([^<>]+)</text>", drawing.svg)
    return texts[: texts.index(label)]


@pytest.mark.parametrize(
    ("epochs", "expected"), [(1, ["1"]), (2, ["1", "2"]), (5, ["1", "2", "3", "4", "5"])]
)
def test_epochs_are_whole_numbers(tmp_path: Path, epochs: int, expected: list[str]) -> None:
    make_run(tmp_path / "run", validated=[0.5] * epochs)
    assert ticks(drawn_curves(tmp_path), "epoch") == expected


def test_time_is_the_runs_own_or_that_of_a_measured_epoch(tmp_path: Path) -> None:
    """The made runs took two seconds an epoch; of taylor nothing was measured."""
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=2)
    groups, looks = groups_of(tmp_path), series_of(["softmax", "taylor"])
    own = accuracy_over_time(groups, looks)
    measured = accuracy_over_time(groups, looks, {"softmax": 10.0})
    assert own is not None
    assert measured is not None
    ends = [[float(tick) for tick in ticks(d, "seconds of training")] for d in (own, measured)]
    assert [(min(end), max(end)) for end in ends] == [(2, 4), (10, 20)]
    assert ["taylor" in drawing.svg for drawing in (own, measured)] == [True, False]
    assert accuracy_over_time(groups, looks, {}) is None


def left_ink(drawing: Drawing) -> float:
    """Inches of blank paper at the left of a figure."""
    with Image.open(io.BytesIO(drawing.png)) as image:
        dark = np.asarray(image.convert("L")) < 250
    return float(np.flatnonzero(dark.any(axis=0))[0] / PIXELS_PER_INCH)


@pytest.mark.parametrize("size", [0.5, 0.02, 0.005, 0.0005])
def test_the_label_of_an_axis_has_room_beside_long_ticks(size: float) -> None:
    def paint(axes: Any) -> None:
        axes_style(axes, x="x", y="validation accuracy", percent="y")
        axes.plot([0, 1], [0.1, 0.1 + size])

    assert left_ink(draw(paint)) > 0.02


def test_one_point_is_no_pareto_plot(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    rows = find(collect(tmp_path)).rows
    series = series_of(["softmax"])
    assert pareto(rows, series, "img_per_s", "img/s", more_is_better=True) is None


def test_the_hardest_classes_come_first_and_the_widest_are_kept() -> None:
    accuracies = {"a": np.array([0.9, 0.5, 0.9, np.nan]), "b": np.array([0.8, 0.6, 0.9, 1.0])}
    assert spread_classes(accuracies) == [1, 0, 2]
    assert spread_classes(accuracies, most=2) == [1, 0]


@pytest.mark.parametrize("classes", [1, 4, 100])
def test_confusion_of_any_number_of_classes(classes: int) -> None:
    counts = ClassCounts(np.eye(classes, dtype=int) + (np.arange(classes) == 0))
    drawing = confusion(counts, [f"class {k}" for k in range(classes)])
    assert drawing.png.startswith(b"\x89PNG")
    assert ("<image" in drawing.svg) == (classes == 100)


def opacities(drawing: Drawing) -> set[str]:
    """Of the cells of mistakes."""
    return set(re.findall(rf"fill: {WRONG}; fill-opacity: ([\d.]+)", drawing.svg))


def test_mistakes_of_every_share_look_different() -> None:
    counts = ClassCounts(np.array([[79, 21, 0], [72, 28, 0], [1, 0, 99]]))
    assert len(opacities(confusion(counts, ["a", "b", "c"]))) == 3
    rare, some, many = (shaded(counts)[cell][3] for cell in ((2, 0), (0, 1), (1, 0)))
    assert 0.2 < rare < some - 0.2 < many - 0.4 < 1


def test_a_rare_mistake_is_not_shown_as_none() -> None:
    """Half a percent rounds to 0, which no cell with a mistake may say."""
    counts = ClassCounts(np.array([[199, 1, 0], [3, 995, 2], [0, 6, 394]]))
    texts = re.findall(r">([^<>]+)</text>", confusion(counts, ["a", "b", "c"]).svg)
    cells = [text.replace("&lt;", "<") for text in texts[8:]]
    assert cells == ["100", "<1", "<1", "100", "<1", "2", "98"]


def labeled(text: str) -> Drawing:
    return draw(lambda axes: axes_style(axes, x=text, y="y"))


@pytest.mark.parametrize(
    "text", ["$\\frac{", "a < b & c", "<script>alert(1)</script>", "表 🙂", "x_1^2", '"quoted"']
)
def test_any_text_can_be_drawn(text: str) -> None:
    page = inline_svg(labeled(text).svg, name="figure", label=text)
    assert "<script" not in page
    assert 'role="img"' in page


def test_inline_figures_follow_the_theme_and_share_no_ids(tmp_path: Path) -> None:
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, seeds=1)
    groups = groups_of(tmp_path)
    series = series_of([group.label for group in groups])
    drawing = epoch_curves(groups, series, "train_loss", "loss")
    assert any(color in drawing.svg for color in VARIABLES)
    first, second = (inline_svg(drawing.svg, name=name, label="") for name in ("one", "two"))
    assert not any(color in first for color in VARIABLES)
    assert {"var(--ink)", "var(--series-0)", "var(--series-1)"} <= set(
        re.findall(r"var\([\w-]+\)", first)
    )
    ids = [re.findall(r'id="([^"]+)"', text) for text in (first, second)]
    assert len(ids[0]) > 2
    assert not set(ids[0]) & set(ids[1])
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', first)
    assert set(used) == set(ids[0])
    assert "<style" not in first


def test_all_attentions_are_drawn_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"kind_{number}" for number in range(11)]
    for name in names:
        entry = Attention("cores.SoftmaxCore", "another", linear=False)
        monkeypatch.setitem(ATTENTIONS._entries, name, entry)
    evidence = collect(make_study(tmp_path, dict.fromkeys(names, 0.9), seeds=1))
    page = compose(evidence, find(evidence))
    confusions = [figure for figure in page.figures if figure.name.startswith("confusion_")]
    assert len(confusions) == 11
    assert len({(look.color, look.marker) for look in page.series.values()}) == 11
    marks = re.findall(r'<span class="mark" style="color:([^"]+)"[^>]*>(.)<', as_html(page))
    assert len(set(marks)) == 11


def test_class_accuracy_needs_a_class_that_all_have() -> None:
    nothing = {"softmax": np.array([np.nan, np.nan])}
    assert class_accuracy(nothing, ["a", "b"], series_of(nothing)) is None


def test_every_other_class_lies_on_a_band() -> None:
    """Markers of many groups fill a class's row, so that rows need an edge."""
    accuracies = {name: np.linspace(0.5, 0.9, 5) for name in ("softmax", "taylor", "performer")}
    drawing = class_accuracy(accuracies, list("abcde"), series_of(accuracies))
    assert drawing is not None
    assert len(re.findall(rf"fill: {GRID}; opacity: 0.5", drawing.svg)) == 3
