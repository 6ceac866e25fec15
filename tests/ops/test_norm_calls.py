"""Residual addition and layer norm as operators of torch, and which calls the kernels take."""

from functools import partial

import pytest
import torch

from saccade.errors import ConfigError
from saccade.ops.norm import add_norm, residual
from saccade.ops.norm.reference import add_norm_reference

pytest.importorskip("triton")

from saccade.ops.norm import triton as norm_triton
from saccade.ops.norm.triton.configs import tile_for, walk_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-2

TENSORS = {
    "mixed": (torch.bfloat16, True),
    "whole": (torch.bfloat16, False),
    "one dtype": (torch.float32, False),
}


@pytest.mark.parametrize(("dtype", "kept"), TENSORS.values(), ids=TENSORS)
def test_what_is_traced_is_what_is_run(dtype, kept):
    x = torch.randn(2, 9, 16, device=DEVICE, requires_grad=True)
    branch = torch.randn(2, 9, 16, device=DEVICE, dtype=dtype, requires_grad=True)
    keep = torch.tensor([0.0, 1.25], device=DEVICE) if kept else None
    weight, bias = (torch.randn(16, device=DEVICE, requires_grad=True) for _ in range(2))
    check = partial(
        torch.library.opcheck,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static"),
    )
    operator = torch.ops.saccade.add_norm.default
    check(operator, (x, branch, keep, weight, bias, EPS, dtype))
    check(torch.ops.saccade.layer_norm.default, (x, weight, bias, EPS, dtype))


def test_compiled_whole():
    shapes = ((2, 9, 16), (2, 9, 16), (16,), (16,))
    leaves = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    keep = torch.tensor([0.0, 1.25], device=DEVICE)

    def run(x, branch, weight, bias):
        s, y = norm_triton.fused(x, branch, keep, weight, bias, eps=EPS, dtype=x.dtype)
        s, z = norm_triton.fused(s, None, None, weight, bias, eps=EPS, dtype=x.dtype)
        return s + y * z

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    eager, traced = run(*leaves), compiled(*leaves)
    pairs = (torch.autograd.grad(out.square().sum(), leaves) for out in (eager, traced))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("width", [16, 20, 256, 384, 2048])
@pytest.mark.parametrize("rows", [1, 63, 64 * 512, 10**6 + 1])
def test_every_row_is_walked_over_once(rows, width):
    tile = tile_for(width)
    programs, span = walk_for(rows, tile)
    assert span % tile.rows == 0
    assert (programs - 1) * span < rows <= programs * span
    assert programs <= 2048


def on_paper(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Have every tensor taken for one on a GPU; what would be run is noted."""
    taken = []

    def note(x, *_, **options):
        taken.append(options)
        return x, x

    monkeypatch.setattr(residual, "has_bfloat16", lambda _: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(norm_triton, "fused", note)
    return taken


def call(width=256, x=torch.float32, branch=torch.bfloat16, parameters=torch.float32, **given):
    stream = on_paper(2, 9, width, dtype=x)
    arguments = {
        "branch": None if branch is None else on_paper(2, 9, width, dtype=branch),
        "keep": on_paper(2),
        "weight": on_paper(width, dtype=parameters),
        "bias": on_paper(width, dtype=parameters),
    }
    return add_norm(stream, *(arguments | given).values(), eps=1e-6)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"branch": None}, True),
        ({"keep": None}, True),
        ({"width": 2048}, True),
        ({"width": 2049}, False),
        ({"weight": None}, False),
        ({"bias": None}, False),
        ({"x": torch.float64}, False),
        ({"parameters": torch.float64}, False),
        ({"x": torch.bfloat16}, True),
        ({"x": torch.bfloat16, "branch": torch.float32}, False),
        ({"x": torch.bfloat16, "branch": torch.float16}, False),
    ],
)
def test_which_calls_are_taken(options, taken, as_on_a_gpu):
    assert (call(**options) is not None) is taken
    dtype = options.get("x", torch.float32)
    assert as_on_a_gpu == ([{"eps": 1e-6, "dtype": dtype}] if taken else [])


def test_a_branch_of_another_shape_is_not_taken(as_on_a_gpu):
    weight = on_paper(16)
    assert add_norm(on_paper(2, 9, 16), on_paper(2, 1, 16), None, weight, weight, eps=0.0) is None
    assert add_norm(on_paper(18, 16), on_paper(18, 16), None, weight, weight, eps=0.0) is None


def test_a_factor_for_each_sample_is_asked_for():
    x, weight = torch.randn(2, 9, 16), torch.ones(16)
    with pytest.raises(ConfigError, match=r"keep must have shape \(2,\), .*, got \(9,\)"):
        add_norm(x, x, torch.ones(9), weight, weight, eps=0.0)


def test_other_devices_go_by_torch():
    x, weight = torch.randn(2, 9, 16), torch.ones(16)
    assert add_norm(x, x, None, weight, weight, eps=0.0) is None


@pytest.mark.parametrize(
    ("lowered", "dtype"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)]
)
def test_autocast_decides_the_dtype_of_the_norm(lowered, dtype):
    x = torch.randn(2, 9, 16)
    with torch.autocast("cpu", lowered):
        assert residual._normalized_dtype(x) == dtype
    assert residual._normalized_dtype(x) == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="the decision is a GPU's")
def test_the_decision_is_compiled_with_the_rest():
    x = torch.randn(2, 64, 256, device=DEVICE)
    branch, keep = torch.randn_like(x).bfloat16(), torch.tensor([0.0, 1.25], device=DEVICE)
    weight, bias = (torch.randn(256, device=DEVICE) for _ in range(2))

    @torch.compile(fullgraph=True)
    def run(x, branch):
        with torch.autocast(DEVICE, torch.bfloat16):
            return add_norm(x, branch, keep, weight, bias, eps=EPS)

    s, y = run(x, branch)
    expected = add_norm_reference(x, branch, keep, weight, bias, eps=EPS)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(s, expected[0])
    torch.testing.assert_close(y.float(), expected[1], atol=2e-2, rtol=2e-2)
