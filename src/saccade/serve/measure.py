"""The view Measure: attention timed on this machine, while somebody watches.

Softmax, and Taylor attention in its direct (quadratic) and linear-time form, forward, float32. The
number of tokens doubles until a form takes too long. A crossing is interpolated between two numbers
of tokens, as in `saccade bench`. Times are of one head: four are timed together, and divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator

from saccade.bench.attention import make_call, prepare
from saccade.bench.clock import Timing, time_calls
from saccade.bench.results import crossover
from saccade.bench.shapes import Shape

__all__ = ["FORMS", "HEADS", "MAX_TOKENS", "HeadDim", "Times", "crossings", "next_points"]

FORMS = {"softmax": "softmax", "direct": "taylor-direct", "linear": "taylor-efficient"}
"""The curves, and the mechanism of `saccade bench` that each is."""
HeadDim = Annotated[Literal[16, 32, 64], BeforeValidator(int)]
HEADS = 4
FIRST_TOKENS, MAX_TOKENS = 64, 16384
SECONDS = 0.15
"""Approximate time that is measured for a point."""
LONGEST_MS = 600.0
"""A form that took longer is not measured with more tokens."""

Times = dict[str, dict[int, float]]
Point = Callable[[], dict[str, Any]]


def next_points(head_dim: int, max_tokens: int, times: Times, device: str) -> Iterator[Point]:
    """Functions that each time one form at one number of tokens and add it to `times`."""
    tokens = FIRST_TOKENS
    while tokens <= max_tokens:
        for form in FORMS:
            known = times.setdefault(form, {})
            if HEADS * max(known.values(), default=0.0) <= LONGEST_MS:
                yield _point(form, head_dim, tokens, known, device)
        tokens *= 2


def _point(form: str, head_dim: int, tokens: int, known: dict[int, float], device: str) -> Point:
    def measure() -> dict[str, Any]:
        timing = _time(FORMS[form], Shape(1, HEADS, tokens, head_dim), device)
        known[tokens] = timing.median_ms / HEADS
        return {
            "form": form,
            "tokens": tokens,
            "median_ms": timing.median_ms / HEADS,
            "p20_ms": timing.p20_ms / HEADS,
            "p80_ms": timing.p80_ms / HEADS,
        }

    return measure


def _time(mechanism: str, shape: Shape, device: str) -> Timing:
    problem, operation = prepare(mechanism, shape, "float32", device, gradients=False)
    call = make_call(problem, operation, "forward")
    return time_calls(call, torch.device(device), seconds=SECONDS)


def crossings(times: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """From how many tokens the linear form is faster than each other form; None if it is not."""
    return [
        {"slower": rival, "tokens": crossover(times[rival], times["linear"])}
        for rival in ("softmax", "direct")
        if len(times.get(rival, {})) > 1 and len(times.get("linear", {})) > 1
    ]
