"""The curves of `saccade analyze crossover` and their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from saccade.bench.clock import summarize
from saccade.bench.results import is_unsteady
from saccade.bench.shapes import Pass, Shape
from saccade.layers import ATTENTIONS

__all__ = ["LINES", "Form", "Line", "Point", "Role", "linear_attentions", "lines_of", "make_point"]

Role = Literal["softmax", "direct", "efficient"]
Form = str
"""`torch`, `fused` or `published` for Taylor attention; the name of any other attention."""


@dataclass(frozen=True)
class Line:
    """A curve of the figure.

    Attributes:
        name: For people.
        mechanism: A name of `saccade.bench.mechanisms`.
        role: Which of the three it is.
        form: Our torch path, our fused kernel, or as published; else the attention's name.
    """

    name: str
    mechanism: str
    role: Role
    form: Form


_TORCH = (
    Line("direct", "taylor-direct/torch", "direct", "torch"),
    Line("efficient", "taylor-efficient/torch", "efficient", "torch"),
)
_PUBLISHED = (
    Line("direct as published", "taylor-formula", "direct", "published"),
    Line("efficient as published", "taylor-unfused", "efficient", "published"),
)
LINES: dict[str, tuple[Line, ...]] = {
    "cpu": (Line("softmax", "sdpa", "softmax", "fused"), *_TORCH, *_PUBLISHED),
    "cuda": (
        Line("softmax, flash", "sdpa-flash", "softmax", "fused"),
        Line("softmax, cuDNN", "sdpa-cudnn", "softmax", "fused"),
        Line("direct, fused", "taylor-direct/triton", "direct", "fused"),
        Line("efficient, fused", "taylor-efficient/triton", "efficient", "fused"),
        *_TORCH,
        *_PUBLISHED,
    ),
}


TAYLOR_FORMS = ("torch", "fused", "published")


def linear_attentions() -> list[str]:
    """Registered attentions of linear cost, without `taylor`, whose forms are in `LINES`."""
    return [name for name in ATTENTIONS if ATTENTIONS[name].linear and name != "taylor"]


def lines_of(device: str, attentions: Sequence[str] = ()) -> tuple[Line, ...]:
    """The curves of a kind of device, with one more for each of some attentions."""
    return (*LINES[device], *(Line(name, name, "efficient", name) for name in attentions))


@dataclass(frozen=True)
class Point:
    """One form at one N.

    Attributes:
        line: Its name in `LINES`.
        role: softmax, direct or efficient.
        form: torch, fused or published.
        head_dim: D.
        tokens: N.
        heads: B H.
        times_ms: Every timed call.
        median_ms: The middle one.
        p20_ms: A fifth of the calls were faster.
        p80_ms: A fifth of the calls were slower.
        tokens_per_s: B H N over the median.
        flops: Of the call, by formula.
        peak_mib: Memory at its highest, less what was there before; None where not measured.
        direction: `forward`, or `training` for forward and backward.
    """

    line: str
    role: Role
    form: Form
    head_dim: int
    tokens: int
    heads: int
    times_ms: tuple[float, ...]
    median_ms: float
    p20_ms: float
    p80_ms: float
    tokens_per_s: float
    flops: int
    peak_mib: float | None = None
    direction: Pass = "forward"

    @property
    def is_unsteady(self) -> bool:
        """Whether its calls differ too much to tell a time."""
        return is_unsteady(self.p20_ms, self.p80_ms)


def make_point(
    line: Line,
    shape: Shape,
    times_ms: list[float],
    flops: int,
    peak_mib: float | None = None,
    direction: Pass = "forward",
) -> Point:
    """The point of a line at a shape, from its timed calls."""
    timing, heads = summarize(times_ms), shape.batch * shape.heads
    return Point(
        line=line.name,
        role=line.role,
        form=line.form,
        head_dim=shape.head_dim,
        tokens=shape.tokens,
        heads=heads,
        times_ms=tuple(round(t, 5) for t in times_ms),
        median_ms=timing.median_ms,
        p20_ms=timing.p20_ms,
        p80_ms=timing.p80_ms,
        tokens_per_s=1e3 * heads * shape.tokens / timing.median_ms,
        flops=flops,
        peak_mib=peak_mib,
        direction=direction,
    )
