"""`saccade bench attention`: time, memory and error of mechanisms and peers on a grid.

Every mechanism is compared with float64 before it is timed. A mechanism of ours with too large an
error is not timed. A mechanism that cannot run has a row with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from saccade.bench.accuracy import Problem
from saccade.bench.clock import Call, time_calls
from saccade.bench.mechanisms import MECHANISMS, Mechanism, Operation, Setting, find
from saccade.bench.memory import cuda_peak_mib, probe_peaks_mib
from saccade.bench.results import AttentionResult, Row, Status
from saccade.bench.shapes import DTypeName, Grid, Pass, Shape
from saccade.errors import ConfigError, first_line

__all__ = ["MECHANISMS", "Runner", "make_call", "prepare"]

Report = Callable[[Row, int, int], None]

_NO_KERNEL = ("No available kernel", "No viable backend")
"""Start of torch's errors if a kernel of `scaled_dot_product_attention` does not support a call."""


def prepare(
    spec: str, shape: Shape, dtype: DTypeName, device: str, *, gradients: bool = True
) -> tuple[Problem, Operation]:
    """Make the inputs of a shape and build a mechanism for it."""
    setting = Setting(shape, getattr(torch, dtype), torch.device(device))
    mechanism, backend = find(spec)
    return Problem(setting, gradients=gradients), mechanism.build(setting, backend)


def make_call(problem: Problem, operation: Operation, direction: Pass) -> Call:
    """A function without arguments that runs one pass."""
    q, k, v = problem.inputs(gradients=direction == "training").values()
    wanted = [q, k, v, *(x for x in operation.parameters.values() if x.requires_grad)]

    def forward() -> object:
        with torch.no_grad():
            return operation.attend(q, k, v)

    def training() -> object:
        return torch.autograd.grad(operation.attend(q, k, v), wanted, problem.grad)

    return forward if direction == "forward" else training


@dataclass
class Runner:
    """Measure rows and append them to a result, which keeps them if interrupted.

    Args:
        result: The result to fill.
        dtype: Dtype of q, k, v.
        device: Device to run on.
        seconds: Approximate time to measure each row.
        threads: Number of torch threads in the process that measures CPU memory; None keeps the
            default.
        report: Called after each row with the row, the number of rows so far, and the total.
    """

    result: AttentionResult
    dtype: DTypeName
    device: torch.device
    seconds: float
    threads: int | None = None
    report: Report = lambda row, done, total: None

    def run(self, grids: Sequence[Grid]) -> None:
        """Measure all grids in order."""
        self.check(grids)
        total = sum(len(g.shapes()) * len(g.mechanisms) * len(g.passes) for g in grids)
        for grid in grids:
            for shape in grid.shapes():
                self._run_shape(grid, shape, total)
        self.result.complete = True

    def check(self, grids: Sequence[Grid]) -> None:
        """Raise for an unknown mechanism, before anything is measured."""
        for grid in grids:
            for spec in grid.mechanisms:
                find(spec)

    def _run_shape(self, grid: Grid, shape: Shape, total: int) -> None:
        setting = Setting(shape, getattr(torch, self.dtype), self.device)
        problem = Problem(setting, gradients="training" in grid.passes)
        for spec in grid.mechanisms:
            for row in self._run_mechanism(problem, spec, grid):
                self.result.rows.append(row)
                self.report(row, len(self.result.rows), total)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _run_mechanism(self, problem: Problem, spec: str, grid: Grid) -> list[Row]:
        mechanism, backend = find(spec)
        blanks = [self._blank(problem.setting.shape, spec, mechanism, p) for p in grid.passes]
        try:
            operation = mechanism.build(problem.setting, backend)
        except Exception as error:
            return [_unable(row, error) for row in blanks]
        return [self._measure(problem, operation, row, grid.memory) for row in blanks]

    def _blank(self, shape: Shape, spec: str, mechanism: Mechanism, direction: Pass) -> Row:
        return Row(
            mechanism=spec,
            family=mechanism.family,
            peer=mechanism.peer,
            **asdict(shape),
            dtype=self.dtype,
            direction=direction,
            status="failed",
        )

    def _measure(self, problem: Problem, operation: Operation, row: Row, memory: bool) -> Row:
        call = make_call(problem, operation, row.direction)
        try:
            accuracy = problem.check(operation, row.family, gradients=row.direction == "training")
            row = replace(row, errors=accuracy.errors, allowed=accuracy.allowed)
            faults = accuracy.faults()
            if faults and not row.peer:
                return replace(row, status="refused", reason="not timed: " + "; ".join(faults))
            timing = time_calls(call, self.device, seconds=self.seconds, warm=True)
        except Exception as error:
            return _unable(row, error)
        remarks = ["a peer, timed although " + "; ".join(faults)] if faults else []
        peak = None
        try:
            peak = self._peak_mib(call, row) if memory else None
        except RuntimeError as error:
            remarks.append(f"memory was not measured: {error}")
        flops = operation.flops[row.direction]
        setting = problem.setting
        least_ms = self.result.roof.least_ms(setting.shape, setting.dtype, row.direction, flops)
        return replace(
            row,
            status="timed",
            reason="; ".join(remarks),
            timing=timing,
            tflops=flops / timing.median_ms / 1e9,
            roof_percent=100 * least_ms / timing.median_ms,
            peak_extra_mib=peak,
        )

    def _peak_mib(self, call: Call, row: Row) -> float:
        if self.device.type == "cuda":
            return cuda_peak_mib(call, self.device)
        request = {
            "mechanism": row.mechanism,
            "shape": asdict(row.shape),
            "dtype": row.dtype,
            "direction": row.direction,
            "threads": self.threads,
        }
        return probe_peaks_mib("attention", [request])[0]


def _unable(row: Row, error: Exception) -> Row:
    """The row of a mechanism that raised, with the root cause in one line."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = first_line(error, 300)
    status: Status = "failed"
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        status = "out of memory"
    elif isinstance(error, ConfigError | NotImplementedError) or text.startswith(_NO_KERNEL):
        status = "not available"
    return replace(row, status=status, reason=text)
