"""A GPU by formula: linear and quadratic time laws with planted crossings, and a clock of its own.

Times are about those of an H200 at 2^19 heads x tokens: what calls and first calls cost is as dear
here as there, so that a schedule that wastes time runs out of it.
"""

from contextlib import suppress
from functools import partial

import numpy as np

from saccade.bench.crossings import make_point
from saccade.bench.crossover.measure import LINES, shape_on
from saccade.bench.crossover.run import HEAD_DIMS, CrossoverFindings
from saccade.bench.crossover.schedule import REACHES, Budget, Schedule

FIRST_SHAPE_S, EVERY_SHAPE_S = 4.0, 0.5
MEMORY_BYTES = 70 << 30

EFFICIENT_US = {
    "fused": {16: 0.16e-3, 32: 0.5e-3, 64: 1.4e-3, 128: 10.6e-3},
    "torch": {16: 6.2e-3, 32: 20e-3, 64: 160e-3, 128: 1200e-3},
    "published": {16: 3e-3, 32: 8.8e-3, 64: 34e-3, 128: 140e-3},
}
"""Microseconds of a token of a head, whatever N is."""

CROSSINGS = {
    ("fused", "direct"): {16: 420, 32: 760, 64: 3100, 128: 11900},
    ("torch", "direct"): {16: 270, 32: 1075, 64: 7900, 128: 42000},
    ("published", "direct"): {16: 250, 32: 860, 64: 3400, 128: 14000},
    ("fused", "softmax"): {16: 300, 32: 700, 64: 2400, 128: 13700},
    ("torch", "softmax"): {16: 11625, 32: 28000, 64: 274286, 128: 1550943},
    ("published", "softmax"): {16: 5625, 32: 12320, 64: 58286, 128: 180943},
}
"""(form, rival) -> D -> N. Those against softmax follow from the first of them."""


class SimulatedGpu:
    """Measures by formula.

    Args:
        slowed: Name of a line -> how many times slower than its law it is.
        interrupted_after: Ctrl-C comes at the shape after so many.
    """

    def __init__(self, slowed=(), interrupted_after=None):
        self.slowed, self.interrupted_after = dict(slowed), interrupted_after
        self.now_s = 0.0
        self.shapes = []
        self._random = np.random.default_rng(0)

    def clock(self):
        return self.now_s

    def call_ms(self, line, shape):
        """c N for efficient forms, c N^2 / crossing for their rivals, flash slower than cuDNN."""
        form = "fused" if line.role == "softmax" else line.form
        one = EFFICIENT_US[form][shape.head_dim] * 1e-3
        work = shape.batch * shape.heads * shape.tokens * one * self.slowed.get(line.name, 1.0)
        if line.role == "efficient":
            return work
        slower = 1.5 if "flash" in line.name else 1.0
        return slower * work * shape.tokens / CROSSINGS[form, line.role][shape.head_dim]

    def measure(self, shape, lines):
        first = shape.head_dim not in {before.head_dim for before in self.shapes}
        if len(self.shapes) == self.interrupted_after:
            raise KeyboardInterrupt
        self.shapes.append(shape)
        self.now_s += EVERY_SHAPE_S + FIRST_SHAPE_S * first
        fitting = [line for line in lines if self._fits(line, shape)]
        return [self._point(line, shape) for line in fitting]

    def _fits(self, line, shape):
        entries = 4 * shape.tokens if line.role == "direct" else 2 * shape.head_dim**2
        held = shape.batch * shape.heads * shape.tokens * entries * 2
        return line.form != "published" or held <= MEMORY_BYTES

    def _point(self, line, shape):
        call_ms = self.call_ms(line, shape)
        repeats = int(np.clip(60 / call_ms, 3, 21))
        self.now_s += 1e-3 * call_ms * (repeats + 1)
        noise = 1 + 0.01 * self._random.standard_normal(repeats)
        return make_point(line, shape, list(call_ms * noise), flops=1)


def simulate(seconds, **gpu_options):
    """A whole run: its findings, and the GPU, whose clock says how long it took."""
    gpu, found = SimulatedGpu(**gpu_options), CrossoverFindings({"device_name": ""}, "bfloat16")
    shape, reach = partial(shape_on, "cuda"), REACHES["cuda"]
    schedule = Schedule(found.points, LINES["cuda"], HEAD_DIMS, reach, shape)
    with suppress(KeyboardInterrupt):
        Budget(
            schedule,
            found.points,
            found.remarks,
            gpu.measure,
            seconds,
            report=lambda message, share: None,
            clock=gpu.clock,
        ).run()
    return found, gpu
