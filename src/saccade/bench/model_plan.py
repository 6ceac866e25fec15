"""Turn the options of `saccade bench model` into cases; presets and their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from saccade.bench.model import ModelCase, ModelResult
from saccade.bench.shapes import PASSES, Pass
from saccade.bench.tables import Table, number
from saccade.errors import UnknownNameError

__all__ = ["MODEL_PRESETS", "ModelPlan", "make_cases", "model_verdicts", "preset_plan"]


@dataclass(frozen=True)
class ModelPlan:
    """Cases to measure, and target ratios of images/s to softmax."""

    cases: tuple[ModelCase, ...]
    targets: Mapping[ModelCase, float] = field(default_factory=dict)


def make_cases(
    models: Sequence[str],
    attentions: Sequence[str],
    image_sizes: Sequence[int],
    patch_sizes: Sequence[int] | None,
    passes: Sequence[str],
    *,
    batch: int,
    compiled: bool,
    autocast: bool,
) -> tuple[ModelCase, ...]:
    """All combinations, with softmax first so that later rows can show their ratio to it."""
    for name in passes:
        if name not in PASSES:
            raise UnknownNameError("pass", name, PASSES)
    ordered = sorted(attentions, key=lambda name: name != "softmax")
    wanted: list[Pass] = [direction for direction in PASSES if direction in passes]
    patches: list[int | None] = [None] if patch_sizes is None else [*patch_sizes]
    return tuple(
        ModelCase(model, attention, size, patch, batch, direction, compiled, autocast)
        for model, size, patch, direction, attention in product(
            models, image_sizes, patches, wanted, ordered
        )
    )


def _vit_s(attention: str, patch: int, batch: int) -> ModelCase:
    return ModelCase("vit_small_patch16_224", attention, 1024, patch, batch, "training", True, True)


# Patch size, batch, and the target ratio of images/s of taylorshift to softmax.
_VIT_S = ((16, 16, 1.1), (8, 4, 2.2))

MODEL_PRESETS = {
    "vit-s-1024": ModelPlan(
        tuple(
            _vit_s(attention, patch, batch)
            for patch, batch, _ in _VIT_S
            for attention in ("softmax", "taylorshift")
        ),
        {_vit_s("taylorshift", patch, batch): ratio for patch, batch, ratio in _VIT_S},
    )
}
"""ViT-S at 1024 px: 4,096 and 16,384 tokens, a training step in bfloat16, compiled."""


def preset_plan(name: str) -> ModelPlan:
    """Look up a preset by name."""
    if name not in MODEL_PRESETS:
        raise UnknownNameError("preset", name, MODEL_PRESETS)
    return MODEL_PRESETS[name]


def model_verdicts(result: ModelResult, plan: ModelPlan) -> Table:
    """Every target of a plan with its measured ratio."""
    lines = []
    for case, at_least in plan.targets.items():
        rows = [row for row in result.rows if row.case == case]
        ratio = result.speedup(rows[0]) if rows else None
        word = (
            "not measured" if ratio is None else "reached" if ratio >= at_least else "not reached"
        )
        what = f"{case.model} {case.attention} {case.image_size} px patch {case.patch_size}"
        lines.append((what, case.direction, f">= {number(at_least)}x", f"{number(ratio)}x", word))
    columns = ("images/s over softmax", "pass", "asked", "measured", "")
    return Table("Targets", columns, lines)
