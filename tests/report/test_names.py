"""What things are called: data sets, the set-ups of a search, classes with long names."""

import csv
from pathlib import Path

import pytest

from saccade.report.classes import short_names
from saccade.report.collect import collect
from saccade.report.findings import find
from saccade.report.write import write_report
from tests.report.made_runs import make_run, make_study, write_record

LONG = tuple(f"{'a very long name of a class, ' * 6}number {number}" for number in range(4))


def test_a_folder_of_images_is_called_by_its_name(tmp_path: Path) -> None:
    words = ["data.name=folder", "data.root=/data/my-images"]
    make_study(tmp_path, {"softmax": 0.9, "taylor": 0.8}, overrides=words)
    report = write_report(tmp_path, formats=["html", "md"])
    assert report.findings.datasets == ["my-images"]
    assert "on my-images" in report.headline
    page = (report.out / "report.md").read_text()
    assert page.startswith("# Two attentions on my-images\n")
    assert "on folder" not in page


def trial(folder: Path, number: int, lr: float, decay: float, **more: object) -> dict[str, object]:
    """A finished trial, and its row of the search's results."""
    values = {"optim.lr": lr, "optim.weight_decay": decay}
    words = [f"{key}={value}" for key, value in values.items()]
    make_run(
        folder / "trials" / f"trial-{number:04d}",
        accuracy=0.5 + lr,
        overrides=words,
        keep_predictions=False,
        summary={"test_accuracy": None, **more},
    )
    return {"number": number, "params": values}


def test_set_ups_of_a_search_are_called_by_what_was_searched(tmp_path: Path) -> None:
    places = [(0.0123456, 0.05), (0.2, 0.05), (0.2, 0.001), (0.0123457, 0.05)]
    rows = [trial(tmp_path, number, *place) for number, place in enumerate(places)]
    write_record(tmp_path / "results.json", kind="tune", trials=rows)
    found = find(collect(tmp_path))
    assert {row.label for row in found.rows} == {
        "lr=0.0123456 weight_decay=0.05",
        "lr=0.2 weight_decay=0.05",
        "lr=0.2 weight_decay=0.001",
        "lr=0.0123457 weight_decay=0.05",
    }
    assert not found.has_short_names


def test_what_was_searched_and_is_the_same_names_nothing(tmp_path: Path) -> None:
    rows = [trial(tmp_path, number, lr, 0.05) for number, lr in enumerate((0.1, 0.2))]
    write_record(tmp_path / "results.json", kind="tune", trials=rows)
    assert {row.label for row in find(collect(tmp_path)).rows} == {"lr=0.1", "lr=0.2"}


def test_memory_that_includes_earlier_runs_is_neither_drawn_nor_told(tmp_path: Path) -> None:
    for folder, shared in ((tmp_path / "own", False), (tmp_path / "shared", True)):
        rows = [
            trial(
                folder, n, lr, 0.05, peak_memory_mib=500.0 + n, peak_memory_shared=shared and n > 0
            )
            for n, lr in enumerate((0.1, 0.2, 0.3))
        ]
        write_record(folder / "results.json", kind="tune", trials=rows)
        report = write_report(folder, formats=["md"])
        memory = {row.label: row.peak_memory_mib for row in report.findings.rows}
        text = (report.out / "report.md").read_text()
        drawn = (report.out / "figures" / "accuracy_memory.png").exists()
        assert drawn is not shared
        assert ("no memory is shown for 2 of 3 runs" in text) is shared
        later = None if shared else 502.0
        assert (memory["lr=0.1"], memory["lr=0.3"]) == (500.0, later)


def test_csv_has_names_and_values_whole(tmp_path: Path) -> None:
    options = [f"model.attention_options={{name: {'x' * 90}{number}}}" for number in (1, 2)]
    for number, option in enumerate(options):
        words = [option, "model.attention=performer"]
        make_run(tmp_path / str(number), "performer", classes=LONG, overrides=words)
    write_report(tmp_path, formats=["csv"])
    tables = tmp_path / "report" / "tables"
    with (tables / "classes.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == list(LONG)
    with (tables / "mix_ups.csv").open() as file:
        assert {row["true"] for row in csv.DictReader(file)} <= set(LONG)
    with (tables / "differences.csv").open() as file:
        assert {f"{'x' * 90}{number}" for number in (1, 2)} <= {
            value for row in csv.DictReader(file) for value in row.values()
        }


@pytest.mark.parametrize("longest", [12, 16])
def test_names_cut_for_a_figure_stay_apart(longest: int) -> None:
    names = [*LONG, "cat", "dog"]
    short = short_names(names, longest)
    assert len(set(short)) == len(names)
    assert max(map(len, short)) <= longest
    assert short[-2:] == ["cat", "dog"]
    assert [name.split()[0] for name in short[:4]] == ["0", "1", "2", "3"]
