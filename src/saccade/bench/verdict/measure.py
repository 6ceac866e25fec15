"""Time every attention in one model, at several sizes, in turns.

At each size and pass all attentions alternate, so that a disturbance affects all of them. The
number of samples shrinks as the number of tokens grows, and is the same for all attentions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from saccade.bench.clock import summarize
from saccade.bench.crossover.lines import Line, Point, make_point
from saccade.bench.crossover.measure import take_turns
from saccade.bench.shapes import PASSES, Pass, Shape
from saccade.bench.verdict.subject import Facts, Subject, make_pass
from saccade.errors import ConfigError

__all__ = ["FACTORS", "ModelPoint", "measure_sizes"]

FACTORS = (1, 1.5, 2, 3, 4)
"""Sizes that are measured, relative to the model's own."""
MAX_ROUND_S = {"cpu": 45.0, "cuda": 20.0}
"""A size at which one round of calls is expected to take longer is left out."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ModelPoint:
    """One attention in the model at one size in one pass.

    Attributes:
        attention: Its name.
        direction: `forward`, or `training` for forward and backward.
        size: Side of an image in pixels, or length of a sequence.
        tokens: N, the class token included.
        batch: Number of samples.
        times_ms: Every timed call; empty if it was not timed.
        reason: Why it was not timed.
    """

    attention: str
    direction: Pass
    size: int
    tokens: int
    batch: int
    times_ms: tuple[float, ...] = ()
    reason: str = ""

    @property
    def median_ms(self) -> float | None:
        """The median, None if it was not timed."""
        return summarize(self.times_ms).median_ms if self.times_ms else None

    def as_point(self, facts: Facts) -> Point:
        """The point as one of a curve of `saccade analyze crossover`."""
        line = Line(self.attention, self.attention, "efficient", self.attention)
        shape = Shape(self.batch, facts.heads, self.tokens, facts.head_dim)
        return make_point(line, shape, list(self.times_ms), flops=0)


def measure_sizes(
    subject: Subject,
    attentions: Sequence[str],
    sizes: Sequence[int],
    device: torch.device,
    points: list[ModelPoint],
    remarks: list[str],
    *,
    passes: Sequence[Pass] = PASSES,
    batch: int,
    seconds: float,
    autocast: bool,
    report: Report = lambda line: None,
) -> None:
    """Measure all attentions at all sizes.

    Args:
        subject: The model.
        attentions: Names of attentions; softmax is what the others are held against.
        sizes: Sizes in rising order, the own one first.
        device: Device to run on.
        points: Receives the points as they are measured, so that an interrupted run keeps them.
        remarks: Receives a sentence for each size that was not measured.
        passes: Passes to measure.
        batch: Number of samples at the smallest size.
        seconds: About how long to time all attentions at one size in one pass.
        autocast: True to use `torch.autocast` with bfloat16.
        report: Called with a line about each size.
    """
    budget = batch * subject.facts(sizes[0]).tokens
    for direction in passes:
        spent: tuple[float, int] | None = None  # seconds of a round, and its tokens
        for size in sizes:
            tokens = subject.facts(size).tokens
            samples = max(1, budget // tokens)
            expected = 0.0 if spent is None else _expected_s(spent, tokens, samples * tokens)
            if expected > MAX_ROUND_S[device.type]:
                remarks.append(
                    f"{direction}: {size:,} {subject.unit} and more are not measured: one round "
                    f"would take about {expected:.0f} s"
                )
                break
            one = ModelPoint("", direction, size, tokens, samples)
            found = _measure(subject, attentions, one, device, seconds, autocast=autocast)
            points += found
            timed = [p.median_ms for p in found if p.median_ms is not None]
            report(f"{direction}, {size:,} {subject.unit}, {tokens:,} tokens: {len(timed)} timed")
            spent = (1e-3 * sum(timed), tokens) if timed else spent


def _expected_s(spent: tuple[float, int], tokens: int, total: int) -> float:
    """Seconds of a round at another number of tokens, if all of it were quadratic in it."""
    seconds, before = spent
    return seconds * (tokens / before) * max(1.0, total / max(before, total))


def _measure(
    subject: Subject,
    attentions: Sequence[str],
    one: ModelPoint,
    device: torch.device,
    seconds: float,
    *,
    autocast: bool,
) -> list[ModelPoint]:
    """A point for every attention at the size and pass of `one`."""
    calls: dict[str, Callable[[], object]] = {}
    reasons: dict[str, str] = {}
    for attention in attentions:
        try:
            call = make_pass(
                subject,
                attention,
                one.size,
                one.batch,
                one.direction,
                device,
                autocast=autocast,
                optimizer=False,
            )
            for _ in range(2):
                call()
        except (ConfigError, NotImplementedError, RuntimeError, MemoryError) as error:
            reasons[attention] = _told(error)
        else:
            calls[attention] = call
    times = take_turns(calls, device, seconds)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    fixed: dict[str, Any] = {k: getattr(one, k) for k in ("direction", "size", "tokens", "batch")}
    return [
        ModelPoint(name, **fixed, times_ms=tuple(times.get(name, ())), reason=reasons.get(name, ""))
        for name in attentions
    ]


def _told(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in text:
        return "out of memory"
    return (text.splitlines() or [type(error).__name__])[0][:200]
