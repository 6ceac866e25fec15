"""What comes of rows: JSON and back, crossovers, targets, tables, plots, the calibration file."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from saccade.bench.calibration import device_key, write_costs
from saccade.bench.clock import Roof, Timing
from saccade.bench.findings import write_attention
from saccade.bench.plots import _comparable
from saccade.bench.presets import PRESETS, Target, judge
from saccade.bench.results import AttentionResult, Row, crossover, softmax_crossovers
from saccade.bench.tables import as_markdown, provenance, summaries, unsteady
from saccade.environment import describe_environment, hardware_slug
from saccade.errors import ConfigError
from saccade.ops.taylor import explain_choice
from saccade.ops.taylor.costs import costs_path, read_costs_once

CPU = torch.device("cpu")
LENGTHS = (64, 256, 1024, 4096)


def row(mechanism: str, family: str, tokens: int, median_ms: float | None, **more) -> Row:
    timing = None if median_ms is None else Timing(median_ms, 0.9 * median_ms, 1.1 * median_ms, 5)
    values = {"direction": "forward", "peak_extra_mib": 2.0, "head_dim": 32} | more
    return Row(
        mechanism=mechanism,
        family=family,
        peer=family == "softmax",
        batch=1,
        heads=8,
        tokens=tokens,
        dtype="float32",
        status="timed" if timing else "refused",
        reason="" if timing else "not timed: out is off by 1",
        timing=timing,
        errors={"out": 1e-7},
        allowed={"out": 2e-7},
        **values,
    )


@pytest.fixture
def result() -> AttentionResult:
    """softmax = N^2 / 1000, direct = half of it, efficient = N; they meet at 1000 and 2000."""
    rows = []
    for direction, factor in (("forward", 1), ("training", 3)):
        for n in LENGTHS:
            rows += [
                row("sdpa", "softmax", n, factor * n * n / 1000, direction=direction),
                row("taylor-direct", "taylor", n, factor * n * n / 2000, direction=direction),
                row("taylor-efficient", "taylor", n, factor * n, direction=direction),
                row("performer", "performer", n, None, direction=direction),
            ]
    return AttentionResult(describe_environment(CPU), Roof(1.0, 10.0), rows, complete=True)


@pytest.mark.parametrize("folder", [["--out", "/home/me/x"], ["--out=/home/me/x"]])
def test_the_command_leaves_out_the_folder(folder, monkeypatch):
    arguments = ["analyze", "crossover", *folder, "--device", "cuda"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/saccade", *arguments])
    command = describe_environment(CPU)["command"]
    assert command == "saccade analyze crossover --device cuda"


def test_what_is_not_known_is_not_told():
    facts = describe_environment(CPU) | {"git_revision": None, "driver": None}
    assert "None" not in provenance(facts)
    told = provenance(facts | {"git_revision": "0123abc", "driver": "580.1"})
    assert "driver 580.1, " in told
    assert told.endswith("revision 0123abc.")


def test_json_round_trip(result):
    assert AttentionResult.from_json(result.to_json()) == result
    document = json.loads(result.to_json())
    assert document["environment"]["packages"]["torch"] == torch.__version__
    assert document["rows"][1]["speedup_over_softmax"] == 2.0


def test_json_of_something_else_is_refused():
    with pytest.raises(ConfigError, match="must have format"):
        AttentionResult.from_json('{"format": "other"}')


@pytest.mark.parametrize("slope", [1.0, 1.3])
def test_crossover_of_powers_is_exact(slope):
    quadratic = {n: 2e-3 * n**2 for n in LENGTHS}
    linear = {n: 0.5 * n**slope for n in LENGTHS}
    assert crossover(quadratic, linear) == pytest.approx(250 ** (1 / (2 - slope)))


def test_crossover_at_the_ends_of_the_grid():
    slow, fast = dict.fromkeys(LENGTHS, 2.0), dict.fromkeys(LENGTHS, 1.0)
    assert crossover(slow, fast) == 64
    assert crossover(fast, slow) is None
    assert crossover({}, {}) is None


def test_crossover_counts_from_the_last_loss():
    slow, fast = {1: 2.0, 2: 1.0, 4: 2.0}, {1: 1.0, 2: 2.0, 4: 1.0}
    assert crossover(slow, fast) == pytest.approx(2**1.5)


def test_crossovers_with_softmax(result):
    found = {(f["mechanism"], f["direction"]): f["tokens"] for f in softmax_crossovers(result)}
    assert found["taylor-efficient", "forward"] == pytest.approx(1000)
    assert found["taylor-direct", "training"] == 64


def test_targets_say_reached_or_not_or_why_there_is_none(result):
    targets = (
        Target("taylor-efficient", 32, 4096, "forward", 4),
        Target("taylor-efficient", 32, 4096, "forward", 5),
        Target("taylor-efficient", 32, 4096, "forward", 0.9, "memory", "taylor-direct"),
        Target("performer", 32, 4096, "forward", 1),
        Target("taylor-efficient", 64, 4096, "forward", 1),
    )
    verdicts = judge(result, targets)
    words = ["reached", "not reached", "reached", "not measured", "not measured"]
    assert [verdict.word for verdict in verdicts] == words
    assert verdicts[0].ratio == pytest.approx(4.096)
    assert "off by 1" in verdicts[3].reason
    assert "was not run" in verdicts[4].reason


@pytest.mark.parametrize("name", PRESETS)
def test_every_target_of_a_preset_is_measured_by_it(name):
    preset = PRESETS[name]
    measured = {
        (mechanism, shape.head_dim, shape.tokens, direction)
        for grid in preset.grids
        for shape in grid.shapes()
        for mechanism in grid.mechanisms
        for direction in grid.passes
    }
    for target in preset.targets:
        assert (target.mechanism, target.head_dim, target.tokens, target.direction) in measured


def test_markdown_shows_times_ratios_refusals_and_targets(result):
    page = as_markdown(
        result, judge(result, (Target("taylor-direct", 32, 256, "forward", 1),)), "f.png"
    )
    assert "| taylor-efficient | 64 (0.064x) | 256 (0.256x) | 1,024 (1.02x) |" in page
    assert "Targets: 1 of 1 reached" in page
    assert "not timed: out is off by 1" in page
    assert "![time and memory over the number of tokens](f.png)" in page


def test_summary_names_the_crossover(result):
    lines = {line[0]: line for line in summaries(result)[0].lines}
    assert "1000" in lines["taylor-efficient"]
    assert "<= 64" in lines["taylor-direct"]


def test_times_that_differ_much_are_remarked_on():
    steady, shaken = Timing(2.0, 1.9, 2.2, 9), Timing(60.0, 50.0, 210.0, 9)
    assert unsteady({"a": steady, "b": None}) == ""
    assert unsteady({"a": steady, "b": shaken}).startswith("unsteady: b (50 to 210 ms); ")
    assert " and 2 more; " in unsteady(dict.fromkeys("abcde", shaken))


def test_files_have_theme_hardware_and_month(result, tmp_path):
    written = write_attention(result, [], tmp_path, hardware_slug(CPU))
    month = written[0].stem.removeprefix("attention_cpu_")
    assert month.isdigit()
    assert len(month) == 6
    assert {path.suffix for path in written} == {".json", ".md", ".png", ".svg"}
    assert written[2].read_bytes().startswith(b"\x89PNG")
    assert "N = 1,000" in written[3].read_text()


def test_an_interrupted_result_does_not_overwrite_a_complete_one(result, tmp_path):
    complete = write_attention(result, [], tmp_path, "cpu")
    unfinished = AttentionResult(result.environment, result.roof, result.rows[:3])
    assert not set(complete) & set(write_attention(unfinished, [], tmp_path, "cpu"))


def test_calibration_keeps_what_other_runs_found(result, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wider = AttentionResult(
        result.environment, result.roof, [replace(r, head_dim=64) for r in result.rows]
    )
    for dtype, found in (("float32", wider), ("bfloat16", result), ("float32", result)):
        assert write_costs(found, CPU, dtype) == costs_path()
    document = json.loads(costs_path().read_text())
    costs = {"crossover_forward": 2000.0, "crossover_training": 2000.0}
    assert document == {
        "version": 1,
        "devices": {
            device_key(CPU): {"bfloat16": {"32": costs}, "float32": {"32": costs, "64": costs}}
        },
    }


def test_what_is_ahead_at_all_measured_tokens_is_taken_at_the_fewest_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [
        row(f"taylor-{algorithm}", "taylor", n, ms, direction=direction)
        for n in LENGTHS
        for algorithm, ms in (("direct", 2.0), ("efficient", 1.0))
        for direction in ("forward", "training")
    ]
    write_costs(AttentionResult(describe_environment(CPU), Roof(1.0, 10.0), rows), CPU, "float32")
    read_costs_once.cache_clear()
    ask = partial(explain_choice, head_dim=32, device_name=device_key(CPU), dtype="float32")
    assert [ask(n).algorithm for n in (63, 64)] == ["direct", "efficient"]
    read_costs_once.cache_clear()


def test_a_broken_calibration_file_starts_afresh(result, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs_path().parent.mkdir(parents=True)
    costs_path().write_text("{")
    write_costs(result, CPU, "float32")
    assert set(json.loads(costs_path().read_text())["devices"]) == {"cpu"}


def test_lines_join_only_rows_of_the_same_work():
    budget = [replace(row("taylor", "taylor", n, 1.0), batch=8192 // n) for n in LENGTHS]
    odd = row("taylor", "taylor", 1 << 20, 1.0)
    assert _comparable([*budget, odd]) == budget
    fixed = [row("taylor", "taylor", n, 1.0) for n in LENGTHS]
    assert _comparable([*fixed, replace(odd, batch=7)]) == fixed
