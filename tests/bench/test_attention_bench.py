"""The runner: right ops are timed, wrong ones refused, absent ones named; ratios share a cell."""

from dataclasses import replace

import pytest
import torch

from saccade.bench.accuracy import Problem
from saccade.bench.attention import MECHANISMS, Runner, prepare
from saccade.bench.clock import Roof, Timing
from saccade.bench.mechanisms import (
    Mechanism,
    Operation,
    Setting,
    quadratic_flops,
    taylor_formula,
    taylor_unfused,
)
from saccade.bench.results import AttentionResult
from saccade.bench.shapes import Grid, Shape
from saccade.errors import ConfigError, UnknownNameError
from saccade.layers import ATTENTIONS, list_attentions
from saccade.ops import taylor_attention

CPU = torch.device("cpu")
SMALL = Grid(("taylor-direct",), (40,), (8,), heads=2, memory=False)


def run(*grids: Grid, dtype="float32") -> AttentionResult:
    result = AttentionResult(environment={}, roof=Roof(1.0, 100.0))
    Runner(result, dtype, CPU, seconds=0.0).run(grids)
    return result


def plant(monkeypatch, attend, *, peer=False) -> None:
    """Register a wrong Taylor attention for one test."""

    def build(setting, backend):
        return Operation(attend, quadratic_flops(setting.shape))

    monkeypatch.setitem(MECHANISMS._entries, "planted", Mechanism("taylor", build, "", peer=peer))


def without_the_half(q, k, v):
    return taylor_attention(q, k, v, coefficients=(1.0, 1.0, 1.0))


def with_a_cut_gradient(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    w = 1 + s + s**2 / 2
    return (w @ v) / w.sum(dim=-1, keepdim=True).detach()


def with_a_nan_where_nobody_looks(q, k, v):
    out = taylor_attention(q, k, v).clone()
    out[1, 0, 1, 0] = torch.nan
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("wrong", [without_the_half, with_a_nan_where_nobody_looks])
def test_a_wrong_op_is_refused(monkeypatch, wrong, dtype):
    plant(monkeypatch, wrong)
    rows = run(replace(SMALL, mechanisms=("planted",), batch=3), dtype=dtype).rows
    assert [row.status for row in rows] == ["refused", "refused"]
    assert all(row.timing is None and row.reason.startswith("not timed: out") for row in rows)


def test_a_wrong_gradient_is_refused_and_the_right_output_timed(monkeypatch):
    plant(monkeypatch, with_a_cut_gradient)
    forward, training = run(replace(SMALL, mechanisms=("planted",))).rows
    assert (forward.status, training.status) == ("timed", "refused")
    assert "dq" in training.reason


def test_a_wrong_peer_is_timed_and_its_error_named(monkeypatch):
    plant(monkeypatch, without_the_half, peer=True)
    for row in run(replace(SMALL, mechanisms=("planted",))).rows:
        assert row.status == "timed"
        assert "although out is off by" in row.reason


def test_what_raises_has_a_row_that_says_so(monkeypatch):
    def absent(setting, backend):
        raise ConfigError("no such kernel here")

    def broken(q, k, v):
        raise RuntimeError("first line\nsecond line")

    plant(monkeypatch, broken)
    monkeypatch.setitem(MECHANISMS._entries, "absent", Mechanism("taylor", absent, ""))
    rows = run(replace(SMALL, mechanisms=("absent", "planted"), passes=("forward",))).rows
    assert [(row.status, row.reason) for row in rows] == [
        ("not available", "no such kernel here"),
        ("failed", "first line"),
    ]


def test_a_backend_that_a_mechanism_lacks_is_not_available():
    (row,) = run(replace(SMALL, mechanisms=("sdpa/triton",), passes=("forward",))).rows
    assert row.status == "not available"
    assert "triton" in row.reason


@pytest.mark.parametrize("name", list_attentions())
def test_every_attention_is_its_equation_in_float64(name):
    problem, operation = prepare(name, Shape(2, 2, 33, 8), "float64", "cpu")
    accuracy = problem.check(operation, name, gradients=True)
    assert set(accuracy.errors) >= {"out", "dq", "dk", "dv"}
    assert max(accuracy.errors.values()) < 1e-12
    assert accuracy.faults() == []


def test_every_family_has_an_equation():
    for name in MECHANISMS:
        assert callable(ATTENTIONS[MECHANISMS[name].family].equation_function)


def test_plain_peers_are_taylor_attention():
    q, k, v = (torch.randn(2, 3, 21, 8, dtype=torch.float64) for _ in range(3))
    expected = taylor_attention(q, k, v, algorithm="direct")
    for peer in (taylor_formula, taylor_unfused):
        torch.testing.assert_close(peer(q, k, v), expected)


def test_few_queries_reach_every_key():
    """With fewer queries checked than there are, an error in one far key's gradient still shows."""
    setting = Setting(Shape(1, 1, 2048, 8), torch.float32, CPU)
    problem = Problem(setting, gradients=True)
    assert len(problem._queries) < 2048

    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, k):
            return k.clone()

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone()
            grad[:, :, 1501] = 0
            return grad

    def attend(q, k, v):
        return taylor_attention(q, Spoilt.apply(k), v)

    operation = Operation(attend, quadratic_flops(setting.shape))
    faults = problem.check(operation, "taylor", gradients=True).faults()
    assert [fault[:2] for fault in faults] == ["dk"]


def test_a_forward_pass_is_timed_where_there_is_no_backward(monkeypatch):
    def attend(q, k, v):
        if torch.is_grad_enabled():
            raise NotImplementedError("no backward pass")
        return taylor_attention(q, k, v)

    plant(monkeypatch, attend)
    forward, training = run(replace(SMALL, mechanisms=("planted",))).rows
    assert (forward.status, training.status) == ("timed", "not available")


def timed(result: AttentionResult, i: int, median_ms: float, **changes) -> None:
    timing = Timing(median_ms, median_ms, median_ms, 1)
    result.rows[i] = replace(result.rows[i], timing=timing, **changes)


def test_ratios_are_against_the_fastest_softmax_of_the_same_cell():
    grid = replace(SMALL, mechanisms=("sdpa", "sdpa-math", "taylor-direct"), tokens=(16, 32))
    result = run(replace(grid, passes=("forward",)))
    for i, median_ms in enumerate((8.0, 6.0, 3.0, 40.0, 50.0, 4.0)):
        timed(result, i, median_ms)
    assert [result.speedup(row) for row in result.rows] == [0.75, 1.0, 2.0, 1.0, 0.8, 10.0]
    timed(result, 0, 1.0, head_dim=16)
    assert result.speedup(result.rows[2]) == 2.0
    assert result.speedup(result.rows[0]) == 1.0


def test_a_row_has_time_spread_rate_roof_and_error():
    (row,) = run(replace(SMALL, passes=("forward",))).rows
    assert row.status == "timed"
    assert 0 < row.timing.p20_ms <= row.timing.median_ms <= row.timing.p80_ms
    assert row.timing.repeats >= 3
    assert row.tflops == pytest.approx(4 * 2 * 40**2 * 8 / row.timing.median_ms / 1e9)
    assert row.roof_percent > 0
    assert 0 < row.errors["out"] <= row.allowed["out"] < 1e-5


def test_memory_on_the_cpu_is_that_of_a_fresh_process():
    """The N x N weights of the plain formula: 4 heads x 1024^2 float32 = 16 MiB, a few times."""
    grid = Grid(("taylor-formula",), (1024,), (8,), heads=4, passes=("forward",))
    (row,) = run(grid).rows
    assert 16 <= row.peak_extra_mib < 160


def test_a_mechanism_that_does_not_exist_stops_before_anything_runs():
    with pytest.raises(UnknownNameError, match="taylor-direct"):
        run(SMALL, replace(SMALL, mechanisms=("taylor-drect",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": (0,)}, "n must be at least 1, got 0"),
        ({"head_dims": (1024,)}, "d must be at least 1 and at most 256, got 1024"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"budget": 100}, "tokens must be a multiple of N H = .*, got 100"),
        ({"passes": ()}, "at least one mechanism and one pass"),
        ({"passes": ("backward",)}, "unknown pass"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **changes)


def test_a_budget_of_tokens_sets_the_batch():
    grid = replace(SMALL, tokens=(64, 256), heads=4, budget=4096)
    assert [shape.batch for shape in grid.shapes()] == [16, 4]
