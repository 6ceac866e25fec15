"""What the tool prints on narrow terminals and of long names: nothing is cut but names."""

import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from saccade.cli.evaluate import _table
from saccade.cli.terminal import fit, padded, print_table
from saccade.study.comparison import ComparisonFolder, Job, Plan
from saccade.study.comparison.status import describe_runs
from saccade.study.comparison.status_view import StatusView

COLUMNS = ["attention", "accuracy", "95% interval", "p (Holm)"]
LINES = [
    ["softmax", "98.25 %", "97.12 - 98.93", "-"],
    ["taylorshift", "97.01 %", "95.63 - 97.97", "0.0042"],
]
NAMES = ["an uncommonly long name of a class", "四", "пять", "seven 🍒"]
RESULT = {
    "count": 60,
    "class_names": NAMES,
    "class_accuracy": dict(zip(NAMES, (1.0, 0.5, None, 0.0625), strict=True)),
    "confusion": [[15, 0, 0, 0], [3, 3, 0, 0], [0, 0, 0, 0], [1000, 0, 0, 1]],
}


def on_a_terminal(columns: int, act: Callable[[], None]) -> list[str]:
    """The lines that a forked process prints on a terminal of so many columns."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(COLUMNS=str(columns), TERM="xterm", NO_COLOR="1")
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
        act()
        sys.stdout.flush()
        os._exit(0)
    written = b""
    while True:
        try:
            written += os.read(terminal, 65536)
        except OSError:  # the child has ended
            break
    os.waitpid(child, 0)
    return re.sub(r"\x1b\[[\d;]*m|\r", "", written.decode()).splitlines()


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_no_number_is_cut(columns: int) -> None:
    lines = on_a_terminal(columns, lambda: print_table("a title", COLUMNS, LINES))
    text = "\n".join(lines)
    assert "…" not in text
    for value in (value for line in LINES for value in line):
        assert value in text
    row = "taylorshift 97.01 % 95.63 - 97.97 0.0042"
    assert any(" ".join(line.split()) == row for line in lines) is (columns >= 60)
    assert all(cell_len(line) <= max(columns, 30) for line in lines)


def test_a_pipe_takes_a_table_of_any_width(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"a rather long column {number}" for number in range(20)]
    print_table("", columns, [[str(number) * 20 for number in range(20)]])
    lines = capsys.readouterr().out.splitlines()
    assert any(all(str(number) * 20 in line for number in range(20)) for line in lines)


def test_names_are_measured_in_columns_of_a_terminal() -> None:
    assert fit("四五六七", 5) == "四五…"
    assert fit("abc", 3) == "abc"
    assert cell_len(padded("四", 6)) == 6


def column_of(line: str, text: str) -> int:
    """Where a text begins on a terminal."""
    return cell_len(line[: line.rindex(text)])


def test_classes_are_aligned_and_the_confusion_is_labeled() -> None:
    lines = _table(RESULT).splitlines()
    classes = lines[lines.index("accuracy by class") + 1 :][:4]
    assert [line.split()[0] for line in classes] == ["0", "1", "2", "3"]
    assert all(name in line for name, line in zip(NAMES, classes, strict=True))
    assert len({column_of(line, " of ") for line in classes}) == 1
    assert [line.rpartition(" of ")[2].strip() for line in classes] == ["15", "6", "0", "1,001"]
    assert ["100.00 %" in classes[0], "-" in classes[2]] == [True, True]
    heading, *rows = lines[-5:]
    assert heading.split() == ["0", "1", "2", "3"]
    for name, row, counts in zip(NAMES, rows, RESULT["confusion"], strict=True):
        assert name in row
        assert row.split()[-4:] == [str(n) for n in counts]
        assert cell_len(row) == cell_len(heading)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_evaluate_fits_narrow_terminals(columns: int) -> None:
    lines = on_a_terminal(columns, lambda: print(_table(RESULT)))
    rows = lines[-4:]
    assert [row.split()[-4:] for row in rows] == [
        [str(n) for n in counts] for counts in RESULT["confusion"]
    ]
    assert all(cell_len(row) <= columns for row in rows)
    assert sum(" of " in line for line in lines) == 4 + 1  # the name of the first class has one


def test_a_confusion_that_no_terminal_holds_is_left_to_json() -> None:
    size = 20
    many = {
        "class_names": [f"class {number}" for number in range(size)],
        "class_accuracy": {f"class {number}": 1.0 for number in range(size)},
        "confusion": [[100] * size] * size,
    }
    lines = on_a_terminal(40, lambda: print(_table(many)))
    assert "--json" in lines[-1]
    assert "--json" not in on_a_terminal(200, lambda: print(_table(many)))[-1]


def test_status_of_many_runs_fits_a_narrow_terminal(begun: ComparisonFolder) -> None:
    for width in (200, 40):
        console = Console(width=width)
        with console.capture() as captured:
            console.print(StatusView(describe_runs(begun)))
        assert "taylor/seed-11" in captured.get()
        assert "24 waiting" in captured.get()
        assert "…" not in captured.get()


@pytest.fixture
def begun(tmp_path: Path, recipe: Path) -> ComparisonFolder:
    from saccade.study import make_plan

    plan: Plan = make_plan(str(recipe), attentions=["softmax", "taylor"], seeds=12)
    folder = ComparisonFolder.start(tmp_path / "study", plan, resume=False)
    assert not folder.run(Job("softmax", 0)).exists()
    return folder
