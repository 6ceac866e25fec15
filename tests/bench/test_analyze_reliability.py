"""Crossings that other load on the machine makes up are not named, and the reason is told."""

from dataclasses import replace

import pytest
import torch

from saccade.bench import clock
from saccade.bench.crossings import make_point
from saccade.bench.crossover.measure import LINES
from saccade.bench.crossover.run import CrossoverFindings, tell
from saccade.bench.shapes import Shape
from tests.bench.simulated_gpu import simulate

GRID = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
LINE = {line.name: line for line in LINES["cpu"]}
CROSSING = 1500
SPREAD = (0.99, 1.0, 1.0, 1.01, 1.02)


def law_ms(line, tokens):
    """Of 6,144 tokens in all: linear and quadratic time with a crossing."""
    ratio = tokens / CROSSING if line.role == "direct" else 1.0
    return 6.0 * ratio * (3.0 if line.role == "softmax" else 1.0)


def findings(disturbed=None):
    """Points by law; `disturbed` has other times of a line at some N."""
    found = CrossoverFindings({"device_name": ""}, "float32")
    for name in ("softmax", "direct", "efficient"):
        line = LINE[name]
        for tokens in GRID:
            shape = Shape(1, max(1, 6144 // tokens), tokens, 16)
            share = shape.heads * tokens / 6144
            times = [share * law_ms(line, tokens) * x for x in SPREAD]
            times = (disturbed or {}).get((name, tokens), times)
            found.points.append(make_point(line, shape, times, flops=1))
    return found


def crossing(found, rival="direct"):
    (one,) = [
        c.crossing
        for c in found.comparisons()
        if (c.form, c.rival, c.measure) == ("torch", rival, "time")
    ]
    return one


def test_a_quiet_machine_names_the_crossing():
    found = crossing(findings())
    assert found.verdict == "crosses"
    assert found.tokens == pytest.approx(CROSSING, rel=0.03)


def test_a_jump_that_no_work_makes_is_no_crossing():
    # All calls at one N were slow, so their spread is small and the interval narrow.
    disturbed = {("efficient", 1536): [1372.0, 1375.0, 1380.0, 1381.0, 1390.0]}
    found = crossing(findings(disturbed))
    assert (found.verdict, found.tokens, found.low, found.high) == (
        "not reliable", None, None, None,
    )  # fmt: skip
    assert found.reason == "efficient goes from 6 to 1.38e+03 ms between N = 1,024 and 1,536"
    assert tell(found) == f"not named: {found.reason}"


def test_unsteady_calls_at_the_crossing_are_no_crossing():
    disturbed = {("direct", 1536): [4.0, 5.0, 6.2, 9.0, 12.0]}
    found = crossing(findings(disturbed))
    assert found.verdict == "not reliable"
    assert found.reason.startswith("direct is unsteady at N = 1,536 (")


def test_a_disturbance_far_from_the_crossing_changes_nothing():
    disturbed = {("direct", 6144): [20.0, 22.0, 25.0, 40.0, 60.0]}
    found = crossing(findings(disturbed))
    assert found.verdict == "crosses"
    assert found.tokens == pytest.approx(CROSSING, rel=0.03)


@pytest.mark.parametrize(("line", "tokens"), [("efficient", 512), ("softmax", 768)])
def test_an_end_of_the_grid_that_is_disturbed_decides_nothing(line, tokens):
    quiet = crossing(findings(), rival="softmax")
    assert quiet.verdict == "ahead from the start"
    disturbed = {(line, tokens): [6.0, 8.0, 12.0, 19.0, 30.0]}
    assert crossing(findings(disturbed), rival="softmax").verdict == "not reliable"


def test_tables_mark_unsteady_points():
    found = findings({("direct", 1536): [4.0, 5.0, 6.2, 9.0, 12.0]})
    (table,) = [table for table in found.tables() if table.title == "forward, D = 16"]
    marked = [line for line in table.lines if "unsteady" in line[3]]
    assert [(line[0], line[1]) for line in marked] == [("direct", "1,536")]
    (crossings,) = [table for table in found.tables() if "in time" in table.title]
    assert any(line[-1].startswith("not named: direct is unsteady") for line in crossings.lines)


def test_a_figure_is_drawn_without_what_is_not_named(tmp_path):
    found = findings({("direct", 1536): [4.0, 5.0, 6.2, 9.0, 12.0]})
    assert all(path.exists() for path in found.draw(tmp_path / "figure"))


def test_a_steady_gpu_names_every_crossing():
    found, _ = simulate(seconds=90)
    assert not any(point.is_unsteady for point in found.points)
    assert "not reliable" not in {c.crossing.verdict for c in found.comparisons()}
    slow = [replace(p, p80_ms=2 * p.p80_ms) for p in found.points]
    found.points[:] = slow
    verdicts = {c.crossing.verdict for c in found.comparisons() if c.measure == "time"}
    assert verdicts == {"not reliable"}


def test_every_round_begins_with_another_line():
    order = []
    lines = [LINE[name] for name in ("softmax", "direct", "efficient")]
    calls = {line: (lambda name=line.name: order.append(name)) for line in lines}
    clock.take_turns(calls, torch.device("cpu"), 0.0)
    names = [line.name for line in lines]
    assert order == names + names[1:] + names[:1] + names[2:] + names[:2]


def test_unsteady_calls_are_repeated_for_longer():
    steady, unsteady = {LINE["direct"]: [1.0, 1.0, 1.1]}, {LINE["direct"]: [1.0, 2.0, 5.0]}
    assert clock._patience(steady, 0.5) == 0.5
    assert clock._patience(steady | {LINE["softmax"]: [1.0, 2.0, 5.0]}, 0.5) == 1.0
    assert clock._patience(unsteady, 0.5) == 1.0
