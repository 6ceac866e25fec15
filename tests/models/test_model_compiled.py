"""Compiled training on a GPU takes its own kernels and gives what eager training gives."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from saccade import create_model

PLAIN = {"pos_drop_rate": 0.0, "proj_drop_rate": 0.0, "drop_path_rate": 0.0}
TOKENS = {"class_token": False, "global_pool": "avg", "depth": 3, **PLAIN}


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
    assert "erf" not in written
    whole = [torch.cat([x.float().flatten() for x in part]) for part in (found, expected)]
    assert (whole[0] - whole[1]).norm() < 0.1 * whole[1].norm()
