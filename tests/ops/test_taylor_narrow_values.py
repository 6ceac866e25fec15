"""Values of at most 16 columns beside wider keys, which ptxas 12.8 miscompiles unless padded."""

import itertools
from functools import partial

import pytest
import torch

from saccade.ops import taylor_attention
from saccade.ops.taylor import taylorshift_attention
from tests.ops.fused_taylor import draw, draw_shift, equation, fused, fused_shift, shift_equation
from tests.ops.mechanisms import assert_as_good_as_plain
from tests.ops.uninterpreted import seen_by

pytest.importorskip("triton")

import triton.language as tl

from saccade.ops.taylor.triton import api, efficient_values, shapes


def is_miscompiled(launch):
    """Whether a launch of `values` is one that ptxas 12.8 miscompiles."""
    flags = launch.constants["FLAGS"]
    return tl.bfloat16 == flags.DTYPE and flags.EP == 16 and flags.DP > 32


@pytest.fixture
def launches(monkeypatch):
    """Launches of `values` that are made instead of run."""
    found = []

    def noted(p, *_unused):
        form = p.call
        found.append(efficient_values.values_launch(form, True))
        found.append(efficient_values.values_launch(form, False))
        out = p.new(form.batch, form.heads, form.queries, form.width).zero_()
        return out, p.numbers(form.batch_heads, form.queries)

    monkeypatch.setitem(shapes._TRITON_DTYPE, torch.bfloat16, tl.bfloat16)  # as outside of tests
    efficient_values.values_launch.cache_clear()
    monkeypatch.setattr(api, "run_in_parts", lambda p, *, keep: noted(p))
    monkeypatch.setattr(api, "keeps_state", lambda q, v: False)
    yield found
    efficient_values.values_launch.cache_clear()


def call(dim, width, *, temperature=None, dtype=torch.bfloat16):
    q, v = (torch.randn(1, 2, 3, n, dtype=dtype) for n in (dim, width))
    options = {"algorithm": "efficient", "backend": "triton"}
    if temperature is None:
        return taylor_attention(q, q, v, **options)
    return taylorshift_attention(q, q, v, temperature, **options)


@pytest.mark.parametrize("temperature", [None, torch.ones(2)], ids=["plain", "shift"])
def test_no_miscompiled_launch_is_made(temperature, launches):
    shapes = list(itertools.product(range(1, 129), (1, 8, 15, 16, 17, 64, 128)))
    for dim, width in shapes:
        assert call(dim, width, temperature=temperature).shape == (1, 2, 3, width)
    assert len(launches) == 2 * len(shapes)
    assert not [launch.constants for launch in launches if is_miscompiled(launch)]


@pytest.mark.parametrize(("dim", "width"), [(33, 16), (64, 8), (128, 1)])
def test_miscompiled_launches_would_be_noticed(dim, width, launches, monkeypatch):
    monkeypatch.setattr(api, "columns_of_values", lambda dim, width, dtype, efficient: width)
    call(dim, width)
    assert len(launches) == 2
    assert all(map(is_miscompiled, launches))


def test_other_calls_are_not_padded(launches):
    call(32, 16)
    call(64, 16, dtype=torch.float32)
    call(64, 17)
    assert [launch.constants["FLAGS"].EP for launch in launches] == [16, 16, 16, 16, 32, 32]
    assert launches[-1].numbers[0][3] == 17


def test_padded_values_give_the_same_output_and_gradients(monkeypatch):
    # bfloat16 is cut in the interpreter: float32 plays its part.
    monkeypatch.setattr(api, "columns_of_values", lambda *_, **__: 32)
    make = partial(draw_shift, batch=1, heads=2, queries=5, keys=7, dim=40, width=8, masked=True)
    run = partial(fused_shift, "efficient")
    assert_as_good_as_plain(run, shift_equation, make, torch.float32, draws=2)


@pytest.mark.slow
def test_machine_code_reads_no_register_that_is_never_written():
    found = seen_by("compile_narrow_values")
    planted = found.pop("planted")
    assert planted == [[46], [], [46], [20, 46]]
    assert len(found) == 3
    assert not any(found.values()), found


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dim", "width"), [(40, 16), (64, 16), (64, 8), (48, 4), (120, 16)])
def test_narrow_values_in_bfloat16(dim, width, masked):
    shape = {"batch": 1, "heads": 12, "queries": 64, "keys": 21, "dim": dim, "width": width}
    make = partial(draw, **shape, masked=masked)
    assert_as_good_as_plain(partial(fused, "efficient"), equation, make, torch.bfloat16, draws=4)
    make = partial(draw_shift, **shape, masked=masked)
    run = partial(fused_shift, "efficient")
    assert_as_good_as_plain(run, shift_equation, make, torch.bfloat16, draws=4)


@pytest.mark.gpu
def test_narrow_values_without_gradients():
    # Without row sums to keep, another variant of the kernel is compiled.
    q, k = torch.randn(2, 1, 12, 197, 40, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(1, 12, 197, 16, device="cuda", dtype=torch.bfloat16)
    mask = torch.arange(197, device="cuda")[None] < 150
    temperature = torch.ones(12, device="cuda")
    run = partial(taylorshift_attention, key_mask=mask, algorithm="efficient")
    with torch.no_grad():
        found = run(q, k, v, temperature, backend="triton")
        exact = run(q.double(), k.double(), v.double(), temperature.double(), backend="torch")
    assert (found.double() - exact).norm() < 0.02 * exact.norm()
