"""Compiles kernels of short heads and of norms for sm_90, without a GPU; prints what they spill."""

import json
from typing import Any

import torch
from benchmarks.machine_code import compiled

from saccade.ops._triton.launch import Launch
from saccade.ops.norm.triton import api as norms
from saccade.ops.softmax.triton import api as softmax
from saccade.ops.taylor.triton import direct_packed as taylor

TOKENS = ((64, 32), (64, 64), (37, 20))
WIDTHS = (256, 192)


def main() -> None:
    spilled: dict[str, int] = {}

    def compile_instead(launch: Launch, *tensors: Any) -> None:
        code = compiled(launch, tensors)
        name = f"{launch.kernel.__name__} {len(spilled)}"
        spilled[name] = code.spilled if code.fits and not code.serialized else -1

    Launch.__call__ = compile_instead  # type: ignore[method-assign]
    for tokens, dim in TOKENS:
        qkv = torch.zeros(4, tokens, 3, 8, dim, dtype=torch.bfloat16)
        grad = torch.zeros(4, tokens, 8, dim, dtype=torch.bfloat16)
        softmax._forward.function(qkv, 0.2)
        softmax._backward.function(grad, qkv, 0.2)
        for temperature in (None, torch.ones(8)):
            numbers = temperature, 1.0, 0.5, 1.0, 1.0, True
            taylor._forward.function(qkv, *numbers)
            taylor._backward.function(grad, qkv, *numbers)
    for width in WIDTHS:
        x = torch.zeros(8, 64, width)
        branch, keep = x.bfloat16(), torch.ones(8)
        weight = torch.ones(width)
        s, _, statistics = norms._add_norm.function(
            x, branch, keep, weight, weight, 1e-6, torch.bfloat16
        )
        known = s, statistics, weight, weight, keep, torch.bfloat16
        norms._backward.function(branch, x, *known)
    print(json.dumps(spilled))


if __name__ == "__main__":
    main()
