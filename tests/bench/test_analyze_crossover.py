"""`saccade analyze crossover`: what it measures, and that time is spent where it tells."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from saccade.bench import clock
from saccade.bench.attention import MECHANISMS
from saccade.bench.clock import MIN_ROUNDS
from saccade.bench.crossings import Crossing
from saccade.bench.crossover import measure as crossover_measure
from saccade.bench.crossover import run as crossover
from saccade.bench.crossover.measure import LINES
from saccade.bench.crossover.plot import make_figure
from saccade.bench.crossover.schedule import REACHES, lengths
from saccade.bench.mechanisms import Mechanism, Operation, quadratic_flops
from saccade.bench.shapes import Shape
from saccade.ops import taylor_attention
from saccade.ops.taylor import num_features
from tests.bench.simulated_gpu import CROSSINGS, simulate

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def crossed():
    """As much of D = 8 as a millisecond allows: two N."""
    findings = crossover.CrossoverFindings({"device_name": "here"}, "float32")
    crossover.run_crossover(findings, CPU, head_dims=(8,), seconds=0.001)
    return findings


def test_crossover_measures_every_line(crossed):
    assert crossed.complete
    lines = {line.name for line in LINES["cpu"]}
    first = min(point.tokens for point in crossed.points)
    assert {point.line for point in crossed.points if point.tokens == first} == lines
    for point in crossed.points:
        assert len(point.times_ms) >= MIN_ROUNDS
        assert point.p20_ms <= point.median_ms <= point.p80_ms
        assert point.tokens_per_s == pytest.approx(
            1e3 * point.heads * point.tokens / point.median_ms
        )


def test_crossover_counts_flops_and_memory(crossed):
    powers = [p for p in crossed.points if p.tokens & (p.tokens - 1) == 0]
    assert powers
    assert all(p.peak_mib is not None for p in powers)
    for p in crossed.points:
        per_token = 4 * p.tokens * 8
        if p.role == "efficient":
            features = num_features(8) if p.form == "torch" else 8 * 8 + 8 + 1
            per_token = 4 * features * 9
        assert p.flops == p.heads * p.tokens * per_token


def test_crossover_says_where_theory_is(crossed, tmp_path):
    conclusions = crossed.conclusions()
    assert conclusions["theory"] == [
        {"head_dim": 8, "N0": 73, "N0_symmetric": 45, "N1": 47, "N1_symmetric": 32}
    ]
    kinds = {(c["form"], c["rival"], c["measure"], c["theory"]) for c in conclusions["crossings"]}
    assert ("torch", "direct", "time", 45) in kinds
    assert ("published", "direct", "memory", 47) in kinds
    assert ("torch", "softmax", "time", None) in kinds
    assert [path.suffix for path in crossed.draw(tmp_path / "x")] == [".png", ".svg"]


def test_a_grid_ends_when_the_time_is_spent(crossed):
    assert {p.tokens for p in crossed.points} == {16, 64}
    # A disturbance may add a remark on a form that seemed far too slow.
    (remark,) = [remark for remark in crossed.remarks if "no time" in remark]
    told, named = remark.split(" N = ")
    assert told == "D = 8: no time for all forms at"
    assert {32, 128, 256} <= {int(n) for n in named.split(", ")}  # more, as the noise suggests


def replace_direct(monkeypatch, attend):
    def build(setting, backend):
        return Operation(attend, quadratic_flops(setting.shape))

    monkeypatch.setitem(MECHANISMS._entries, "taylor-direct", Mechanism("taylor", build, ""))


def test_a_wrong_form_is_not_timed_and_told_of_once(monkeypatch):
    replace_direct(
        monkeypatch, lambda q, k, v: taylor_attention(q, k, v, coefficients=(1.0, 1.0, 1.0))
    )
    remarks = []
    bench = crossover_measure.Device(CPU, "float32", 0.0, remarks)
    for tokens in (32, 64):
        points = bench.measure(Shape(1, 2, tokens, 8), LINES["cpu"])
        right = [line.name for line in LINES["cpu"] if line.name != "direct"]
        assert [point.line for point in points] == right
    (remark,) = remarks
    assert remark.startswith("direct at D=8 N=32 B=1 H=2: not timed: out is off by")


def test_a_form_is_compared_with_float64_once_for_each_head_dim(monkeypatch):
    calls = []

    def attend(q, k, v):
        calls.append((q.shape[3], q.shape[2]))
        return taylor_attention(q, k, v)

    replace_direct(monkeypatch, attend)
    bench = crossover_measure.Device(CPU, "float32", 0.0, [])
    for dim, tokens in ((8, 32), (8, 64), (16, 32)):
        bench.measure(Shape(1, 2, tokens, dim), LINES["cpu"])
    timed = MIN_ROUNDS + 1
    assert Counter(calls) == {(8, 32): timed + 1, (8, 64): timed, (16, 32): timed + 1}


def test_slow_calls_are_repeated_less():
    assert [clock._at_once(t, GPU) for t in ([], [0.2], [5.0], [774.0])] == [
        1,
        10,
        4,
        1,
    ]
    assert clock._at_once([0.2], CPU) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_the_grid_surrounds_both_thresholds(device, dim):
    grid = lengths(dim, REACHES[device])
    assert grid[0] < (dim * dim + dim + 1) / 4
    assert grid[-1] > 3 * (dim * dim + dim + 1)
    assert max(b / a for a, b in pairwise(grid)) <= 1.5


@pytest.mark.parametrize(("dim", "tokens", "rows"), [(16, 64, 1 << 15), (128, 1 << 20, 1)])
def test_shapes_of_a_gpu_are_equally_large(dim, tokens, rows):
    shape = crossover_measure.shape_on("cuda", dim, tokens)
    assert shape.batch * shape.heads == rows
    assert shape.heads == min(8, rows)


@pytest.fixture(scope="module")
def gpu_run():
    return simulate(seconds=90)


def time_crossings(findings):
    return {
        (c.form, c.rival, c.head_dim): c.crossing
        for c in findings.comparisons()
        if c.measure == "time"
    }


def test_ninety_seconds_find_every_planted_crossing(gpu_run):
    findings, gpu = gpu_run
    assert gpu.now_s < 92
    found = time_crossings(findings)
    beyond_reach = found.pop(("torch", "softmax", 128))
    assert (beyond_reach.verdict, beyond_reach.last_tokens) == ("behind to the end", 131072)
    assert len(found) == 6 * 4 - 1
    for (form, rival, dim), crossing in found.items():
        assert crossing.tokens == pytest.approx(CROSSINGS[form, rival][dim], rel=0.03)
        assert crossing.low <= crossing.tokens <= crossing.high


def test_half_the_speed_moves_its_crossings_and_no_others():
    findings, _ = simulate(seconds=90, slowed={"efficient, fused": 2.0})
    found = time_crossings(findings)
    for dim in (16, 32, 64, 128):
        for rival in ("direct", "softmax"):
            planted = 2 * CROSSINGS["fused", rival][dim]
            assert found["fused", rival, dim].tokens == pytest.approx(planted, rel=0.03)
        planted = CROSSINGS["torch", "direct"][dim]
        assert found["torch", "direct", dim].tokens == pytest.approx(planted, rel=0.03)


def test_a_third_of_the_time_still_shows_every_head_dim():
    findings, gpu = simulate(seconds=30)
    assert gpu.now_s < 33
    found = time_crossings(findings)
    for dim in (16, 32, 64, 128):
        for pair in (("fused", "direct"), ("fused", "softmax"), ("published", "direct")):
            assert found[*pair, dim].tokens == pytest.approx(CROSSINGS[pair][dim], rel=0.05)
    assert [remark[:7] for remark in findings.remarks[:4]] == [
        "D = 16:",
        "D = 32:",
        "D = 64:",
        "D = 128",
    ]


def test_all_head_dims_come_before_a_second_length(gpu_run):
    _, gpu = gpu_run
    assert [shape.head_dim for shape in gpu.shapes[:8]] == [16, 32, 64, 128] * 2


def test_a_form_without_news_is_left_out_and_told_of(gpu_run):
    findings, _ = gpu_run
    direct = [p.tokens for p in findings.points if (p.line, p.head_dim) == ("direct", 128)]
    assert max(direct) == 65536
    (told,) = [r for r in findings.remarks if r.startswith("D = 128: direct not beyond")]
    assert told.startswith("D = 128: direct not beyond N = 65,536, where it was 17")
    assert told.endswith("times slower than the fastest, with no crossing left to find")
    fused = [p.tokens for p in findings.points if (p.line, p.head_dim) == ("direct, fused", 128)]
    assert max(fused) == 131072


def test_an_interrupted_run_keeps_its_points_and_its_remarks():
    findings, gpu = simulate(seconds=90, interrupted_after=30)
    assert len(gpu.shapes) == 30
    assert {p.head_dim for p in findings.points} == {16, 32, 64, 128}
    assert any("no crossing left to find" in remark for remark in findings.remarks)


def test_nothing_is_drawn_beyond_the_edge_of_the_figure(gpu_run):
    findings, _ = gpu_run
    figure = make_figure(findings)
    figure.draw_without_rendering()
    box, edge = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= edge[0]
    assert box.y1 <= edge[1]


def test_a_crossing_in_words():
    found = Crossing("crosses", 300.4, 290.0, None, (300.4,), 64, 1024)
    assert crossover.tell(found) == "300 (290 to > 1,024)"
    assert crossover.tell(Crossing("behind to the end", last_tokens=2048)) == "not up to 2,048"
