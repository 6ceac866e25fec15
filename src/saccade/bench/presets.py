"""Named grids of `saccade bench attention` and their target ratios."""

from __future__ import annotations

from dataclasses import dataclass

from saccade.bench.shapes import DTypeName, Grid, Pass
from saccade.bench.targets import Measure, Target

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """A reproducible configuration of `saccade bench attention`.

    Attributes:
        device: `cpu` or `cuda`.
        dtype: Dtype of q, k, v.
        grids: Shapes and mechanisms to measure.
        targets: Target ratios.
        seconds: Approximate time to measure each row.
        threads: Number of torch threads on the CPU; None keeps the default.
    """

    device: str
    dtype: DTypeName
    grids: tuple[Grid, ...]
    targets: tuple[Target, ...]
    seconds: float
    threads: int | None = None


_DIRECT = ("taylor-direct/triton", "taylorshift-direct")
_EFFICIENT = ("taylor-efficient/triton", "taylorshift-efficient")
_H200_MECHANISMS = ("sdpa-flash", "sdpa-cudnn", *_DIRECT, *_EFFICIENT)
_H200_TOKENS = (1024, 4096, 16384, 65536)

# Mechanisms, pass, N, and the target speed-up over softmax for each D.
_H200_SPEED: tuple[tuple[tuple[str, ...], Pass, tuple[int, ...], dict[int, float]], ...] = (
    (_DIRECT, "forward", (1024, 4096, 16384), {16: 1.5, 32: 1.5, 64: 1.15, 128: 1.0}),
    (_DIRECT, "training", (1024, 4096, 16384), {16: 1.4, 32: 1.4, 64: 1.1, 128: 0.95}),
    (_EFFICIENT, "forward", (4096,), {16: 16, 32: 7, 64: 1.4}),
    (_EFFICIENT, "forward", (16384,), {16: 65, 32: 27, 64: 5.5, 128: 1.3}),
    (_EFFICIENT, "training", (16384,), {16: 50, 32: 20, 64: 4.5, 128: 1.2}),
    (_EFFICIENT, "training", (65536,), {16: 190, 32: 75, 64: 17, 128: 4.5}),
)

_AGAINST_UNFUSED_ON_H200: tuple[tuple[Measure, float], ...] = (("time", 40), ("memory", 10))
_AGAINST_UNFUSED_ON_CPU: tuple[tuple[Measure, float], ...] = (("time", 2.5), ("memory", 5))

_H200_TARGETS = (
    *(
        Target(mechanism, head_dim, tokens, direction, at_least)
        for mechanisms, direction, lengths, ratios in _H200_SPEED
        for head_dim, at_least in ratios.items()
        for tokens in lengths
        for mechanism in mechanisms
    ),
    *(
        Target(mechanism, head_dim, tokens, direction, 0.8, "memory")
        for head_dim in (16, 32, 64, 128)
        for tokens in _H200_TOKENS
        for direction in ("forward", "training")
        for mechanism in (*_DIRECT, *_EFFICIENT)
    ),
    *(
        Target("taylor-efficient/triton", 32, tokens, "training", ratio, measure, "taylor-unfused")
        for tokens in (4096, 16384)
        for measure, ratio in _AGAINST_UNFUSED_ON_H200
    ),
    *(
        Target("performer", head_dim, 16384, "training", 4, peer="performer-pytorch")
        for head_dim in (32, 64)
    ),
)

_H200 = Preset(
    device="cuda",
    dtype="bfloat16",
    grids=(
        Grid(_H200_MECHANISMS, _H200_TOKENS, (16, 32), budget=1 << 21),
        Grid(_H200_MECHANISMS, _H200_TOKENS, (64, 128), budget=1 << 20),
        Grid(("taylor-unfused",), (4096, 16384), (32,), budget=1 << 21),
        Grid(
            (
                "performer",
                "performer-pytorch",
                "taylor-unfused-compiled",
                "taylor-flex",
            ),
            (16384,),
            (32,),
            budget=1 << 21,
        ),
        Grid(("taylor-formula-compiled",), (1024,), (32,), budget=1 << 21),
        Grid(("performer", "performer-pytorch"), (16384,), (64,), budget=1 << 20),
        Grid(_EFFICIENT, (1 << 20,), (32,), heads=8, batch=1),
    ),
    targets=_H200_TARGETS,
    seconds=0.04,
)

_CPU_MECHANISMS = ("sdpa", "taylor-efficient", "taylor-unfused")

_CPU = Preset(
    device="cpu",
    dtype="float32",
    grids=(
        Grid(_CPU_MECHANISMS, (1024,), (32, 64), passes=("forward",), memory=False),
        Grid(_CPU_MECHANISMS, (4096,), (64,), passes=("forward",), memory=False),
        Grid(_CPU_MECHANISMS, (4096, 16384), (32,), passes=("forward",)),
        Grid(_CPU_MECHANISMS, (16384,), (64,), passes=("forward",)),
        Grid(_CPU_MECHANISMS, (4096,), (32,), passes=("training",), memory=False),
    ),
    targets=(
        Target("taylor-efficient", 32, 4096, "forward", 2),
        Target("taylor-efficient", 32, 16384, "forward", 8),
        Target("taylor-efficient", 64, 16384, "forward", 2.5),
        *(
            Target("taylor-efficient", head_dim, 16384, "forward", ratio, measure, "taylor-unfused")
            for head_dim in (32, 64)
            for measure, ratio in _AGAINST_UNFUSED_ON_CPU
        ),
    ),
    seconds=1.5,
    threads=2,
)

PRESETS = {"h200": _H200, "cpu": _CPU}
