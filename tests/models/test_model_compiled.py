"""Compiled training takes its own kernels and gives what eager training gives.

Without a GPU it is told that there is one, for all but attention, and the interpreter runs them.
"""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor.utils import run_and_get_code

from saccade import create_model
from saccade.layers import convolution, residual
from saccade.ops import gelu
from saccade.ops.norm import residual as norms

PLAIN = {"pos_drop_rate": 0.0, "proj_drop_rate": 0.0, "drop_path_rate": 0.0}
TOKENS = {"class_token": False, "global_pool": "avg", "depth": 3, **PLAIN}
TOKENS["norm_eps"] = 0.05  # as large as the variances, so that another eps shows


def relative_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    one, other = (torch.cat([x.float().flatten() for x in part]) for part in (found, expected))
    return float((one - other).norm() / other.norm())


def is_compiling(_x: torch.Tensor) -> bool:
    return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag


@pytest.mark.parametrize("name", ["vit_cifar", "residual_cifar"])
def test_what_is_compiled_for_a_gpu_is_what_eager_code_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    for module in (convolution, residual, gelu):
        monkeypatch.setattr(module, "is_compiled_for_gpu", is_compiling)
    monkeypatch.setattr(norms, "_takes", lambda *_: True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=noting))
    torch._dynamo.reset()
    seen.clear()
    torch.manual_seed(0)
    model = create_model(name, num_classes=10, embed_dim=32, num_heads=2, **TOKENS).train()
    images = torch.randn(3, 3, 32, 32)

    def step() -> list[torch.Tensor]:
        logits = model(images)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    expected = step()
    model.set_compiled()
    assert relative_error(step(), expected) < 1e-4
    assert {"saccade.add_norm.default", "saccade.layer_norm.default", "unfold"} <= seen


seen: set[str] = set()


def noting(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **_options: object
) -> object:
    seen.update(str(node.target) for node in graph.graph.nodes)
    return aot_eager(graph, inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "attention", "kernel"),
    [
        ("vit_cifar", "softmax", "softmax_packed"),
        ("vit_cifar", "taylor", "taylor_packed"),
        ("residual_cifar", "taylorshift", "taylor_packed"),
    ],
)
def test_compiled_steps_are_eager_steps(name: str, attention: str, kernel: str) -> None:
    torch.manual_seed(0)
    model = create_model(name, attention=attention, num_classes=10, **TOKENS).cuda().train()
    images = torch.randn(16, 3, 32, 32, device="cuda")

    def step() -> list[torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(images)
        gradients = torch.autograd.grad(logits.float().square().sum(), list(model.parameters()))
        return [logits, *gradients]

    expected = step()
    model.set_compiled()
    found, codes = run_and_get_code(step)
    written = "\n".join(codes)
    for operator in (kernel, f"{kernel}_backward", "add_norm", "layer_norm", "add_norm_backward"):
        assert f"saccade.{operator}" in written
    assert "libdevice.erf" not in written
    assert relative_error(found, expected) < 0.1
