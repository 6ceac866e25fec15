"""Time every attention in one model at several sizes; and the efficiency of that model.

At each size and pass all attentions alternate, so that a disturbance affects all of them. The
number of samples shrinks as the number of tokens grows, and is the same for all attentions.

Efficiency has the metrics of the code of TaylorShift (arXiv:2403.02920): parameters, FLOPs, peak
memory of training and inference at several batch sizes, and the highest throughput over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from saccade.bench.clock import Call, Timing, summarize, take_turns
from saccade.bench.crossings import Line, Point, make_point
from saccade.bench.model import measure_pass
from saccade.bench.shapes import PASSES, Pass, Shape
from saccade.bench.verdict.subject import Facts, Subject, make_pass
from saccade.errors import ConfigError, first_line, is_out_of_memory
from saccade.models import count_flops

__all__ = [
    "BATCHES",
    "FACTORS",
    "Cell",
    "Efficiency",
    "ModelPoint",
    "best",
    "measure_efficiency",
    "measure_sizes",
]

FACTORS = (1, 1.5, 2, 3, 4)
"""Sizes that are measured, relative to the model's own."""
BATCHES = (1, 16, 32, 64, 128)
MAX_ROUND_S = {"cpu": 45.0, "cuda": 20.0}
"""A size at which one round of calls is expected to take longer is left out."""
MAX_CALL_S = 60.0
"""A batch size whose calls are expected to take longer is left out."""
OUT_OF_MEMORY = "out of memory"

Report = Callable[[str], None]


@dataclass(frozen=True)
class ModelPoint:
    """One attention in the model at one size in one pass.

    Attributes:
        size: Side of an image in pixels, or length of a sequence.
        tokens: N, the class token included.
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
        """The point as one of a curve over N."""
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
        attentions: Names of attentions; the others are compared with softmax.
        sizes: Sizes in rising order, the own one first.
        device: Device to run on.
        points: Receives the points as they are measured, so that an interrupted run keeps them.
        remarks: Receives a sentence for each size that was not measured.
        passes: Passes to measure.
        batch: Number of samples at the smallest size.
        seconds: Approximate time of all attentions at one size in one pass.
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
    calls: dict[str, Call] = {}
    reasons: dict[str, str] = {}
    for name in attentions:
        options = (one.size, one.batch, one.direction, device)
        try:
            call = make_pass(subject, name, *options, autocast=autocast, optimizer=False)
            for _ in range(2):
                call()
        except (ConfigError, NotImplementedError, RuntimeError, MemoryError) as error:
            lacks_memory = _is_out_of_memory(error)
            reasons[name] = OUT_OF_MEMORY if lacks_memory else first_line(error, 200)
        else:
            calls[name] = call
    times = take_turns(calls, device, seconds)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return [
        replace(
            one, attention=name, times_ms=tuple(times.get(name, ())), reason=reasons.get(name, "")
        )
        for name in attentions
    ]


def _is_out_of_memory(error: Exception) -> bool:
    return is_out_of_memory(error) or "allocate memory" in str(error)


@dataclass(frozen=True)
class Cell:
    """One pass at one batch size; training ends with a step of AdamW.

    Attributes:
        peak_mib: Peak memory of the pass; on a GPU with the model, on the CPU what the pass adds.
        reason: Why values are missing, such as "out of memory".
    """

    batch: int
    direction: Pass
    timing: Timing | None = None
    samples_per_s: float | None = None
    peak_mib: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Efficiency:
    """The size of a model with one attention.

    Attributes:
        flops: FLOPs of a forward pass of one sample, by formula.
    """

    attention: str
    parameters: int
    flops: int
    cells: tuple[Cell, ...]


def best(found: Efficiency, direction: Pass) -> Cell | None:
    """The cell with the highest throughput; None if none was timed."""
    cells = [c for c in found.cells if c.direction == direction and c.samples_per_s is not None]
    return max(cells, key=lambda c: c.samples_per_s or 0.0, default=None)


def measure_efficiency(
    subject: Subject,
    attention: str,
    device: torch.device,
    *,
    batches: Sequence[int] = BATCHES,
    passes: Sequence[Pass] = PASSES,
    seconds: float,
    autocast: bool,
    report: Report = lambda line: None,
) -> Efficiency:
    """Measure a model at its own size; a cell that does not fit in memory says so."""
    with torch.device("meta"):
        model = subject.build(attention)
    cells: list[Cell] = []
    for direction in passes:
        full = ""
        for batch in batches:
            known = [c for c in cells if c.direction == direction and c.timing is not None]
            if full or _is_too_slow(known, batch):
                reason = full or f"not measured: a call would take more than {MAX_CALL_S:.0f} s"
                cells.append(Cell(batch, direction, reason=reason))
                continue
            cell = _cell(subject, attention, batch, direction, device, seconds, autocast)
            full = OUT_OF_MEMORY if cell.reason == OUT_OF_MEMORY else ""
            cells.append(cell)
            rate = cell.reason or f"{cell.samples_per_s:,.1f} samples/s"
            report(f"{attention}, {direction}, batch {batch}: {rate}")
    flops = sum(count_flops(model).values())
    return Efficiency(attention, sum(p.numel() for p in model.parameters()), flops, tuple(cells))


def _is_too_slow(known: Sequence[Cell], batch: int) -> bool:
    """True if a call is expected to take too long, in proportion to the batch size."""
    if not known or known[-1].timing is None:
        return False
    return 1e-3 * known[-1].timing.median_ms * batch / known[-1].batch > MAX_CALL_S


def _cell(
    subject: Subject,
    attention: str,
    batch: int,
    direction: Pass,
    device: torch.device,
    seconds: float,
    autocast: bool,
) -> Cell:
    request = {
        "subject": asdict(subject),
        "attention": attention,
        "batch": batch,
        "direction": direction,
        "autocast": autocast,
    }
    options = (subject, attention, subject.size, batch, direction, device)
    make = partial(make_pass, *options, autocast=autocast, optimizer=True)
    try:
        timing, peak, reason = measure_pass(make, "subject", request, device, seconds)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return Cell(batch, direction, reason=OUT_OF_MEMORY)
    rate = round(1e3 * batch / timing.median_ms, 2)
    return Cell(batch, direction, timing, rate, peak, reason)
