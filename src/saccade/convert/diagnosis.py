"""Diagnose a softmax model before its attention is replaced.

For every layer and head, on the model's own inputs, with scores s = q.k / sqrt(D):

| number | meaning |
|---|---|
| low, high | smallest and largest score |
| spread | standard deviation of the scores within a row, mean over rows |
| below | fraction of scores below -1, where 1 + s + s^2/2 grows again although exp(s) falls |
| key shift | length of the mean key over the mean length of keys; softmax ignores the mean key |
| distance | total variation between the rows of softmax and of the new attention, 0 to 1 |
| output error | relative change of a block's branch if its attention is replaced |

Scores are centered within rows for `low`, `high` and `below` if the new attention centers keys.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from saccade.bench.clock import time_calls
from saccade.convert.student import block_inputs
from saccade.layers import AttentionCore, MultiHeadAttention
from saccade.models import VisionTransformer
from saccade.ops.centering import centered_keys
from saccade.ops.softmax import softmax_weights

__all__ = ["TOKENS", "Diagnosis", "LayerDiagnosis", "Speed", "diagnose", "measure_speed"]

CHUNK = 16  # images at a time
CLOSE, FAR = 0.1, 0.3  # output errors between which a layer needs distillation
VERDICTS = {
    "close": "close to softmax: holds without training",
    "between": "differs: needs distillation",
    "far": "far from softmax: keep softmax, or expect a loss",
}

Heads = tuple[float, ...]


@dataclass(frozen=True)
class LayerDiagnosis:
    """The numbers of one layer; tuples have an entry for each head.

    Attributes:
        index: Index of the block.
        low: Smallest score.
        high: Largest score.
        spread: Standard deviation of scores within a row.
        below: Share of scores below -1.
        key_shift: Length of the mean key, relative to the mean length of keys.
        distance: Total variation to softmax.
        plain_distance: The same without centered keys; `distance` if keys are not centered.
        output_error: Relative change of the block's branch.
    """

    index: int
    low: Heads
    high: Heads
    spread: Heads
    below: Heads
    key_shift: Heads
    distance: Heads
    plain_distance: Heads
    output_error: float

    @property
    def level(self) -> str:
        """`close`, `between` or `far`."""
        if self.output_error < CLOSE:
            return "close"
        return "between" if self.output_error < FAR else "far"

    @property
    def verdict(self) -> str:
        """The consequence for the conversion, in words."""
        return VERDICTS[self.level]

    def mean(self, name: str) -> float:
        """The mean over heads of one of the numbers."""
        values: Heads = getattr(self, name)
        return sum(values) / len(values)


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of all layers of a model.

    Attributes:
        attention: The new attention.
        images: Number of images.
        layers: One entry for each block.
    """

    attention: str
    images: int
    layers: tuple[LayerDiagnosis, ...]

    def hardest(self, count: int) -> list[int]:
        """The blocks with the largest output errors, in the order of the model."""
        ranked = sorted(self.layers, key=lambda layer: -layer.output_error)
        return sorted(layer.index for layer in ranked[:count])

    def as_json(self) -> dict[str, Any]:
        """All numbers and verdicts as JSON values."""
        layers = [{**asdict(layer), "verdict": layer.verdict} for layer in self.layers]
        return {"attention": self.attention, "images": self.images, "layers": layers}


@torch.no_grad()
def diagnose(teacher: VisionTransformer, student: VisionTransformer, images: Tensor) -> Diagnosis:
    """Measure every layer of a softmax model and of its student.

    Args:
        teacher: The softmax model, in evaluation mode.
        student: The same weights with another attention in every block.
        images: Normalized images (B, C, height, width).
    """
    sums: list[dict[str, Tensor]] = [{} for _ in teacher.blocks]
    for part in torch.split(images, CHUNK):
        grid = teacher.patch_embed.dynamic_feat_size((part.shape[2], part.shape[3]))
        streams = list(block_inputs(teacher, part))
        for place, (old, new) in enumerate(zip(teacher.blocks, student.blocks, strict=True)):
            x, y = streams[place], streams[place + 1]
            found = _measure(old.attn, new.attn.core, old.norm1(x))
            found["error"] = (new(x, grid=grid) - y).double().square().sum()
            found["branch"] = (y - x).double().square().sum()
            _add(sums[place], found)
    layers = tuple(_layer(place, found, len(images)) for place, found in enumerate(sums))
    return Diagnosis(student.config.attention, len(images), layers)


def _measure(attn: MultiHeadAttention, core: AttentionCore, x: Tensor) -> dict[str, Tensor]:
    """Sums over the samples of a chunk, or extremes, one entry for each head."""
    q, k, _ = attn.heads(x)
    q, k = q.float(), k.float()
    centers = bool(getattr(core, "center_keys", False))
    scores = q @ (centered_keys(k) if centers else k).mT * q.shape[-1] ** -0.5  # (B, H, N, N)
    exact = softmax_weights(q, k)
    shift = k.mean(dim=2).norm(dim=-1) / k.norm(dim=-1).mean(dim=2).clamp(min=1e-12)
    distance = _distance(core.attention_weights(q, k), exact)
    plain = distance
    if centers:
        core.center_keys = False  # type: ignore[assignment]
        plain = _distance(core.attention_weights(q, k), exact)
        core.center_keys = True  # type: ignore[assignment]
    return {
        "low": scores.amin(dim=(0, 2, 3)),
        "high": scores.amax(dim=(0, 2, 3)),
        "spread": scores.std(dim=-1).mean(dim=2).sum(dim=0),
        "below": (scores < -1).float().mean(dim=(2, 3)).sum(dim=0),
        "key_shift": shift.sum(dim=0),
        "distance": distance.sum(dim=0),
        "plain_distance": plain.sum(dim=0),
    }


def _distance(found: Tensor, exact: Tensor) -> Tensor:
    """Total variation between rows, (B, H)."""
    return (found - exact).abs().sum(dim=-1).mean(dim=2) / 2


def _add(sums: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for key, value in found.items():
        if key not in sums:
            sums[key] = value
        elif key == "low":
            sums[key] = torch.minimum(sums[key], value)
        elif key == "high":
            sums[key] = torch.maximum(sums[key], value)
        else:
            sums[key] = sums[key] + value


def _layer(index: int, found: dict[str, Tensor], images: int) -> LayerDiagnosis:
    means = ("spread", "below", "key_shift", "distance", "plain_distance")
    numbers: dict[str, Any] = {key: tuple(found[key].tolist()) for key in ("low", "high")}
    numbers |= {key: tuple((found[key] / images).tolist()) for key in means}
    error = float((found["error"] / found["branch"].clamp(min=1e-30)).sqrt())
    return LayerDiagnosis(index=index, output_error=error, **numbers)


TOKENS = (1024, 4096, 16384)
SECONDS = 0.3  # for the repeats of a short call
LONG = 2.0  # a call that takes longer is timed once


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a block in inference, for one image."""

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
