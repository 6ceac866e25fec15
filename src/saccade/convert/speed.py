"""Time of one block at growing numbers of tokens, with softmax and with the new attention."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from saccade.bench.clock import time_calls
from saccade.models import VisionTransformer

__all__ = ["TOKENS", "Speed", "measure_speed"]

TOKENS = (1024, 4096, 16384)
SECONDS = 0.3  # for the repeats of a short call
LONG = 2.0  # a call that takes longer is timed once


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a block in inference, for one image.

    Attributes:
        tokens: Number of tokens.
        softmax_ms: With softmax.
        attention_ms: With the new attention.
    """

    tokens: int
    softmax_ms: float
    attention_ms: float


@torch.no_grad()
def measure_speed(
    teacher: VisionTransformer, student: VisionTransformer, device: torch.device
) -> list[Speed]:
    """Time the first block whose attention differs; in bfloat16 on a GPU, else float32."""
    kept = student.config.softmax_blocks
    place = next(index for index in range(len(student.blocks)) if index not in kept)
    found = []
    for tokens in TOKENS:
        x = torch.randn(1, tokens, teacher.embed_dim, device=device)
        grid = (math.isqrt(tokens), math.isqrt(tokens))
        times = []
        for model in (teacher, student):
            call = partial(model.blocks[place], x, grid=grid)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                times.append(_median_ms(call, device))
        found.append(Speed(tokens, *times))
    return found


def _median_ms(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    if device.type != "cuda" and seconds > LONG:
        return 1e3 * seconds
    return time_calls(call, device, seconds=SECONDS, warm=True).median_ms
