"""Parameters, FLOPs, memory and throughput of one model, by batch size.

These are the efficiency metrics of the code of TaylorShift (arXiv:2403.02920): peak memory of
training and of inference at several batch sizes, and the highest throughput over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from saccade.bench.clock import time_calls
from saccade.bench.memory import cuda_peak_mib, probe_peak_mib
from saccade.bench.results import Timing
from saccade.bench.shapes import PASSES, Pass
from saccade.bench.verdict.subject import Subject, make_pass
from saccade.models import count_flops

__all__ = ["BATCHES", "Cell", "Efficiency", "best", "measure_efficiency"]

BATCHES = (1, 16, 32, 64, 128)
MAX_CALL_S = 60.0
"""A batch size whose calls are expected to take longer is left out."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """One pass at one batch size.

    Attributes:
        batch: Number of samples.
        direction: `forward`, or `training`: forward, backward and a step of AdamW.
        timing: Times of the calls; None if it was not measured.
        samples_per_s: Samples per second.
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
        attention: Name of the attention.
        parameters: Number of parameters.
        flops: FLOPs of a forward pass of one sample, by formula.
        cells: Every batch size in every pass.
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
            late = _is_too_slow(known, batch)
            if full or late:
                reason = full or f"not measured: a call would take more than {MAX_CALL_S:.0f} s"
                cells.append(Cell(batch, direction, reason=reason))
                continue
            cell = _cell(subject, attention, batch, direction, device, seconds, autocast)
            full = "out of memory" if cell.reason == "out of memory" else ""
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
    try:
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        call = make_pass(
            subject,
            attention,
            subject.size,
            batch,
            direction,
            device,
            autocast=autocast,
            optimizer=True,
        )
        call()
        timing = time_calls(call, device, seconds=seconds, warm=True)
        peak: float | None
        if device.type == "cuda":
            resident = (torch.cuda.memory_allocated(device) - before) / 2**20
            peak, reason = resident + cuda_peak_mib(call, device), ""
        else:
            del call
            peak, reason = _probe(subject, attention, batch, direction, autocast)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return Cell(batch, direction, reason="out of memory")
    rate = round(1e3 * batch / timing.median_ms, 2)
    return Cell(batch, direction, timing, rate, peak, reason)


def _is_out_of_memory(error: Exception) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "allocate memory" in str(error)


def _probe(
    subject: Subject, attention: str, batch: int, direction: Pass, autocast: bool
) -> tuple[float | None, str]:
    """Peak memory on the CPU, in a fresh process."""
    request = {
        "subject": asdict(subject),
        "attention": attention,
        "batch": batch,
        "direction": direction,
        "autocast": autocast,
        "threads": torch.get_num_threads(),
    }
    try:
        return probe_peak_mib("subject", request), ""
    except RuntimeError as error:
        return None, f"memory was not measured: {error}"
