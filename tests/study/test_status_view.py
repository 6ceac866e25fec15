"""The table of `saccade compare status` on narrow and short terminals."""

import pytest
from rich.console import Console

from saccade.study.comparison.status import RunStatus, State
from saccade.study.comparison.status_view import StatusView

LOG = "/shared/of-a-group-with-a-long-name/three/slurm/123456_2_0_log.out"
WHY = "data.root='/data/imagenet' cannot be read: No such file or directory"


def printed(runs: list[RunStatus], width: int, height: int | None = None) -> str:
    """The lines on a terminal, or all that is printed if there is no height."""
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as got:
        console.print(StatusView(runs, fits_screen=height is not None), soft_wrap=height is None)
    return got.get()


def run(number: int, state: State, reason: str = "") -> RunStatus:
    eta = 5400.0 if state == "running" else None
    log = LOG if state == "failed" else ""
    return RunStatus(
        f"performer-favor/seed-{number}", state, 13, 40, eta, None, reason, f"12_{number}", log
    )


@pytest.mark.parametrize("width", [80, 50])
def test_names_reasons_and_logs_are_never_cut(width: int) -> None:
    waits = [run(number, "queued", "JobArrayTaskLimit") for number in (2, 3)]
    out = printed([run(0, "running"), run(1, "failed", WHY), *waits], width)
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == "1 running, 2 queued, 1 failed"
    for number, state in enumerate(("running", "failed", "queued", "queued")):
        (line,) = (line for line in lines if line.startswith(f"performer-favor/seed-{number} "))
        assert state in line.split()
        assert ("12_" in line) == (width == 80)
    assert "13/40, 90 min left" in " ".join(out.split())
    assert f"performer-favor/seed-1: {WHY}" in lines
    assert LOG in lines  # in one piece, to be copied
    assert lines.count("2 queued: JobArrayTaskLimit") == 1
    table = out[: out.index("2 queued: ")]
    assert max(map(len, table.splitlines())) <= width


def test_a_short_terminal_shows_what_matters() -> None:
    states: list[State] = ["done"] * 30 + ["running"] * 3 + ["failed"] + ["queued"] * 30
    out = printed(
        [run(n, state, "oh" * (state == "failed")) for n, state in enumerate(states)], 80, 24
    )
    assert out.startswith("30 done, 3 running, 30 queued, 1 failed")
    assert len(out.splitlines()) <= 24
    for number in (30, 31, 32, 33):
        assert f"performer-favor/seed-{number} " in out
    assert "performer-favor/seed-33: oh" in out
    shown = sum(line.startswith(" performer-favor") for line in out.splitlines())
    assert f"and {len(states) - shown} more" in out


@pytest.mark.parametrize("height", [8, 12, 24])
@pytest.mark.parametrize(
    ("width", "cells"),
    [
        (200, "12_9 13/40, 90 min left"),
        (80, "12_9 13/40, 90 min left"),
        (60, "13/40, 90 min left"),
        (50, "13/40"),
        (36, ""),
    ],
)
def test_each_run_has_one_line_of_a_screen(width: int, cells: str, height: int) -> None:
    """Without room the progress is cut, then left out. Long reasons take several lines."""
    states: list[State] = ["done"] * 9 + ["running"] * 2 + ["failed"] + ["queued"] * 9
    runs = [run(n, state, WHY * (state == "failed")) for n, state in enumerate(states)]
    lines = printed(runs, width, height).splitlines()
    assert lines[0].startswith("9 done, 2 running")
    assert max(map(len, lines)) <= width
    (head,) = (line for line in lines if line.split()[:1] == ["run"])
    (row,) = (line for line in lines if line.startswith(" performer-favor/seed-9 "))
    assert row.split() == ["performer-favor/seed-9", "running", *cells.split()]
    assert ("progress" in head) == bool(cells)


def test_a_screen_has_room_for_reasons_of_several_lines() -> None:
    states: list[State] = ["done"] * 30 + ["failed"] + ["running"] * 9
    runs = [run(n, state, WHY * (state == "failed")) for n, state in enumerate(states)]
    out = printed(runs, 50, 24)
    assert len(out.splitlines()) == 24
    assert "No such file or directory" in " ".join(out.split())
