"""Measure the roof of the device: the rates of a large matrix product and a large copy."""

from __future__ import annotations

import torch

from saccade.bench.clock import time_calls
from saccade.bench.mechanisms import Setting
from saccade.bench.results import Roof
from saccade.bench.shapes import Pass

__all__ = ["measure_roof", "roof_ms"]

MATMUL_SIZE = {"cuda": 8192, "cpu": 2048}
COPIED_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}

# Forward reads q, k, v and writes o. Backward reads q, k, v, o, do and writes dq, dk, dv.
TENSORS_MOVED: dict[Pass, int] = {"forward": 4, "training": 12}


def measure_roof(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> Roof:
    """Time a large matrix product in this dtype and a large copy."""
    size = MATMUL_SIZE.get(device.type, MATMUL_SIZE["cpu"])
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device)
    product = time_calls(lambda: torch.mm(a, b, out=out), device, seconds=seconds)
    copied = COPIED_BYTES.get(device.type, COPIED_BYTES["cpu"])
    source = torch.zeros(copied, dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    copy = time_calls(lambda: target.copy_(source), device, seconds=seconds)
    return Roof(
        matmul_tflops=2 * size**3 / product.p20_ms / 1e9,
        copy_gb_per_s=2 * copied / copy.p20_ms / 1e6,
    )


def roof_ms(roof: Roof, setting: Setting, direction: Pass, flops: int) -> float:
    """The shortest time that the roof allows: the longer of computing and moving the data once."""
    shape = setting.shape
    entries = shape.batch * shape.heads * shape.tokens * shape.head_dim
    moved = TENSORS_MOVED[direction] * entries * setting.dtype.itemsize
    return max(flops / roof.matmul_tflops / 1e9, moved / roof.copy_gb_per_s / 1e6)
