"""What torch can do with our operators, and what it must refuse."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad

from saccade.errors import ConfigError
from saccade.ops import taylor_attention
from saccade.ops.compilation import constant_when_compiled
from saccade.ops.taylor import direct
from tests.ops.mechanisms import make_inputs

BACKENDS = ["torch", "triton"]


@pytest.fixture(params=BACKENDS)
def attend(request):
    if request.param == "triton":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("the interpreter runs these on the CPU")
    return partial(taylor_attention, algorithm="efficient", backend=request.param)


@pytest.fixture
def qkv():
    return [x.float() for x in make_inputs(batch=1, heads=2, queries=5, dim=8)[:3]]


def test_constants_of_compiled_code_are_marked_as_torch_marks_them():
    ours, theirs = (
        mark(lambda: None)
        for mark in (constant_when_compiled, torch.compiler.assume_constant_result)
    )
    assert vars(ours) == vars(theirs) != {}


def test_a_second_derivative_raises_whatever_the_loss(attend, qkv):
    q, k, v = qkv
    q.requires_grad_()
    for loss in (torch.sum, torch.norm):
        (grad,) = torch.autograd.grad(loss(attend(q, k, v)), q, create_graph=True)
        with pytest.raises(RuntimeError, match="can be differentiated once"):
            (grad.square().sum() + q.square().sum()).backward()


def test_forward_mode_of_kernels_raises_instead_of_dropping_tangents(qkv):
    q, k, v = qkv
    with forward_ad.dual_level(), pytest.raises(ConfigError, match="forward-mode"):
        taylor_attention(forward_ad.make_dual(q, k), k, v, backend="triton")


def test_forward_mode_of_an_operator_raises_instead_of_dropping_tangents(qkv):
    q, k, v = qkv
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        direct._forward(forward_ad.make_dual(q, k), k, v, None, 1.0, 0.5, 1.0, 1.0)


def test_tangents_of_a_gradient_raise_as_well(attend, qkv):
    q, k, v = qkv
    out = attend(q.requires_grad_(), k, v)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        torch.autograd.grad(out, q, forward_ad.make_dual(torch.ones_like(out), out.detach()))


def test_backward_passes_can_be_compiled(attend, qkv):
    q, k, v = qkv
    q.requires_grad_()
    (expected,) = torch.autograd.grad(attend(q, k, v).square().sum(), q)
    loss = attend(q, k, v).square().sum()
    torch._dynamo.reset()
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        loss.backward()
    torch.testing.assert_close(q.grad, expected)


def test_vmap_keeps_what_gradients_need(attend, qkv):
    q, k, v = qkv
    stacked = torch.stack([q, 2 * q]).requires_grad_()
    out = torch.func.vmap(lambda x: attend(x, k, v))(stacked)
    (grad,) = torch.autograd.grad(out.square().sum(), stacked)
    for x, expected in zip(stacked.detach(), grad, strict=True):
        x.requires_grad_()
        (actual,) = torch.autograd.grad(attend(x, k, v).square().sum(), x)
        torch.testing.assert_close(actual, expected)


def test_compiled_writes_through_a_view_have_gradients(attend, qkv):
    q, k, v = qkv
    row = torch.randn(1, 2, 8, requires_grad=True)

    def run(q):
        written = q.clone()
        written[:, :, 0].copy_(row)
        return attend(written, k, v).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(run(q), row)
    (actual,) = torch.autograd.grad(compiled(q), row)
    torch.testing.assert_close(actual, expected)


class Scaled(torch.nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend, self.weight = attend, torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.attend(x * self.weight, x, x)


def test_what_was_exported_without_gradients_can_be_trained(attend, qkv):
    module = Scaled(attend)
    with torch.no_grad():
        exported = torch.export.export(module, (qkv[0],)).module()
    out = exported(qkv[0])
    torch.testing.assert_close(out, module(qkv[0]))
    out.square().sum().backward()
    assert exported.weight.grad.norm() > 0


RELOAD = """
import importlib, torch
from saccade.ops.taylor import direct
inputs = torch.randn(3, 1, 2, 5, 8)
options = {"scale": 1.0, "coefficients": (0.5, 1.0, 1.0), "key_mask": None}
before = direct.direct(*inputs, **options)
assert torch.equal(importlib.reload(direct).direct(*inputs, **options), before)
"""


def test_a_module_of_operators_can_be_loaded_again():
    subprocess.run([sys.executable, "-c", RELOAD], check=True)


def test_lengths_held_open_compile_once(attend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def run(q, k, v):
        return attend(q, k, v).square().sum()

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for tokens in (5, 7, 12):
        leaves = [x.float().requires_grad_() for x in make_inputs(queries=tokens, dim=8)[:3]]
        expected, actual = (torch.autograd.grad(f(*leaves), leaves) for f in (run, compiled))
        torch.testing.assert_close(actual, expected)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 3
