"""The curves of `saccade analyze crossover`, and their points: time, memory and FLOPs at one shape.

Forms of Taylor attention, softmax and other attentions alternate, so that a disturbance affects all
of them. Each is compared with float64 at its first shape of every D, before it is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch

from saccade.bench.accuracy import Problem
from saccade.bench.attention import make_call
from saccade.bench.clock import Call, take_turns
from saccade.bench.crossings import Line, Point, make_point
from saccade.bench.mechanisms import Operation, Setting, find
from saccade.bench.memory import cuda_peak_mib, probe_peaks_mib
from saccade.bench.shapes import DTypeName, Pass, Shape
from saccade.errors import first_line
from saccade.layers import ATTENTIONS

__all__ = [
    "LINES",
    "TAYLOR_FORMS",
    "Device",
    "is_power_of_two",
    "linear_attentions",
    "lines_of",
    "shape_on",
]

CPU_TOKENS = 1 << 13
CUDA_NUMBERS = 1 << 25
CUDA_HEADS = 8
CPU_BYTES = 5 << 27
"""Maximum size of the published forms, which hold N x N weights or N x D^2 features."""

TAYLOR_FORMS = ("torch", "fused", "published")
_TORCH_AND_PUBLISHED = (
    Line("direct", "taylor-direct/torch", "direct", "torch"),
    Line("efficient", "taylor-efficient/torch", "efficient", "torch"),
    Line("direct as published", "taylor-formula", "direct", "published"),
    Line("efficient as published", "taylor-unfused", "efficient", "published"),
)
LINES: dict[str, tuple[Line, ...]] = {
    "cpu": (Line("softmax", "sdpa", "softmax", "fused"), *_TORCH_AND_PUBLISHED),
    "cuda": (
        Line("softmax, flash", "sdpa-flash", "softmax", "fused"),
        Line("softmax, cuDNN", "sdpa-cudnn", "softmax", "fused"),
        Line("direct, fused", "taylor-direct/triton", "direct", "fused"),
        Line("efficient, fused", "taylor-efficient/triton", "efficient", "fused"),
        *_TORCH_AND_PUBLISHED,
    ),
}


def linear_attentions() -> list[str]:
    """Registered attentions of linear cost, without `taylor`, whose forms are in `LINES`."""
    return [name for name in ATTENTIONS if ATTENTIONS[name].linear and name != "taylor"]


def lines_of(device: str, attentions: Sequence[str] = ()) -> tuple[Line, ...]:
    """The curves of a kind of device, with one more for each of some attentions."""
    return (*LINES[device], *(Line(name, name, "efficient", name) for name in attentions))


def is_power_of_two(tokens: int) -> bool:
    """True if N belongs to the coarse grid."""
    return tokens & (tokens - 1) == 0


def shape_on(device: str, head_dim: int, tokens: int) -> Shape:
    """B H N is the same for every N, as far as one head goes; on a GPU B H N D."""
    if device == "cpu":
        return Shape(1, max(1, CPU_TOKENS // tokens), tokens, head_dim)
    rows = max(1, CUDA_NUMBERS // (head_dim * tokens))
    heads = min(CUDA_HEADS, rows)
    return Shape(rows // heads, heads, tokens, head_dim)


@dataclass
class Device:
    """Measures lines at shapes.

    Args:
        device: Device to run on.
        dtype: Dtype of q, k, v.
        seconds: Approximate time of all lines of a shape together.
        remarks: Receives a sentence for each form that was not measured, with the reason.
        direction: `forward`, or `training` for forward and backward.
    """

    device: torch.device
    dtype: DTypeName
    seconds: float
    remarks: list[str]
    direction: Pass = "forward"
    _checked: dict[tuple[int, Line], bool] = field(default_factory=dict)

    def measure(self, shape: Shape, lines: Sequence[Line]) -> list[Point]:
        """A point for every line that is right and fits."""
        setting = Setting(shape, getattr(torch, self.dtype), self.device)
        problem = Problem(setting, gradients=self.direction == "training")
        ready: dict[Line, tuple[Operation, Call, float | None]] = {}
        for line in lines:
            if not self._fits(line, shape) or not self._checked.get((shape.head_dim, line), True):
                continue
            try:
                ready[line] = self._prepare(line, problem)
            except Exception as error:
                self.remarks.append(f"{line.name} at {shape}: {first_line(error, 200)}")
        calls = {line: call for line, (_, call, _) in ready.items()}
        times = take_turns(calls, self.device, self.seconds)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return [
            make_point(
                *(line, shape, times[line], operation.flops[self.direction], peak), self.direction
            )
            for line, (operation, _, peak) in ready.items()
        ]

    def add_memory(self, points: list[Point], head_dims: Sequence[int]) -> None:
        """On a CPU: peaks of the forward pass at the powers of two, from a process for every D."""
        is_probed = self.device.type == "cpu" and self.direction == "forward"
        for head_dim in head_dims if is_probed else ():
            chosen = [
                i
                for i, p in enumerate(points)
                if p.head_dim == head_dim and is_power_of_two(p.tokens)
            ]
            try:
                peaks = probe_peaks_mib("attention", [self._request(points[i]) for i in chosen])
            except RuntimeError as error:
                self.remarks.append(f"D = {head_dim}: memory was not measured: {error}")
                continue
            for i, peak in zip(chosen, peaks, strict=True):
                points[i] = replace(points[i], peak_mib=peak)

    def _request(self, point: Point) -> dict[str, object]:
        mechanisms = {line.name: line.mechanism for line in LINES[self.device.type]}
        return {
            "mechanism": mechanisms.get(point.line, point.line),
            "shape": asdict(shape_on(self.device.type, point.head_dim, point.tokens)),
            "dtype": self.dtype,
            "direction": "forward",
            "threads": torch.get_num_threads(),
        }

    def _fits(self, line: Line, shape: Shape) -> bool:
        """False for a published form that takes too much memory."""
        if line.form != "published":
            return True
        most = CPU_BYTES
        if self.device.type == "cuda":
            most = torch.cuda.get_device_properties(self.device).total_memory // 2
        entries = 4 * shape.tokens if line.role == "direct" else 2 * shape.head_dim**2
        size: int = getattr(torch, self.dtype).itemsize
        return shape.batch * shape.heads * shape.tokens * entries * size <= most

    def _prepare(self, line: Line, problem: Problem) -> tuple[Operation, Call, float | None]:
        """The form, one call of it, which was made once, and its memory on a GPU."""
        mechanism, backend = find(line.mechanism)
        operation = mechanism.build(problem.setting, backend)
        place = problem.setting.shape.head_dim, line
        if place not in self._checked:
            faults = self._faults(problem, operation, mechanism.family)
            self._checked[place] = mechanism.peer or not faults
            if not self._checked[place]:
                raise ArithmeticError("not timed: " + "; ".join(faults))
        call = make_call(problem, operation, self.direction)
        if self.device.type == "cuda":
            return operation, call, cuda_peak_mib(call, self.device)
        call()
        return operation, call, None

    def _faults(self, problem: Problem, operation: Operation, family: str) -> list[str]:
        """Errors of the output and of the gradients of q, k and v that are too large.

        Gradients of parameters sum over all heads and tokens, and vary more than the bound allows
        where there are many; tests compare them with float64.
        """
        gradients = self.direction == "training"
        found = problem.check(operation, family, gradients=gradients).faults()
        return [fault for fault in found if fault.split()[0] in ("out", "dq", "dk", "dv")]
