"""Turn the options of `saccade bench` into grids of shapes and cases of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product

from saccade.bench.calibration import CALIBRATION_GRIDS
from saccade.bench.model import ModelCase, ModelResult
from saccade.bench.presets import PRESETS, Preset
from saccade.bench.shapes import DTYPES, PASSES, DTypeName, Grid, check_choice, check_passes
from saccade.bench.tables import Table, number
from saccade.errors import ConfigError, UnknownNameError

__all__ = [
    "MODEL_PRESETS",
    "GridOptions",
    "ModelPlan",
    "make_cases",
    "make_plan",
    "model_verdicts",
    "preset_plan",
]

_SOFTMAX = {"cuda": ("sdpa-flash", "sdpa-cudnn"), "cpu": ("sdpa",)}
_OURS = ("taylor-direct", "taylor-efficient", "taylorshift", "performer")
_DTYPE: dict[str, DTypeName] = {"cuda": "bfloat16", "cpu": "float32"}
_SECONDS = {"cuda": 0.05, "cpu": 0.5}


@dataclass(frozen=True)
class GridOptions:
    """The options of a grid; None and empty sequences mean the default."""

    mechanisms: Sequence[str] = ()
    n: Sequence[int] = ()
    d: Sequence[int] = ()
    heads: int | None = None
    batch: int | None = None
    tokens: int | None = None
    passes: Sequence[str] = ()

    def given(self) -> list[str]:
        """The options that were set."""
        return [f"--{f.name}" for f in fields(self) if getattr(self, f.name) not in (None, (), [])]


def make_plan(
    options: GridOptions,
    device: str,
    *,
    preset: str | None = None,
    calibrate: bool = False,
    dtype: str | None = None,
    seconds: float | None = None,
    threads: int | None = None,
    memory: bool = True,
) -> Preset:
    """The grids of a preset, of the calibration, or of the options."""
    if preset is not None:
        plan = _from_preset(
            preset, device, [*options.given(), *(["--dtype"] if dtype is not None else [])]
        )
        if calibrate:
            raise ConfigError(
                "--preset and --calibrate have their own grids; give only one of them"
            )
    else:
        if calibrate and options.given():
            raise ConfigError(f"--calibrate has its own grid; leave out {options.given()[0]}")
        grids = CALIBRATION_GRIDS[device] if calibrate else (_grid(options, device, memory),)
        chosen = check_choice("dtype", _DTYPE[device] if dtype is None else dtype, DTYPES)
        plan = Preset(device, chosen, grids, targets=(), seconds=_SECONDS[device])
    if seconds is not None:
        plan = replace(plan, seconds=seconds)
    return plan if threads is None else replace(plan, threads=threads)


def _from_preset(name: str, device: str, given: list[str]) -> Preset:
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    if given:
        raise ConfigError(f"--preset {name} has its own grid; leave out {given[0]}")
    if PRESETS[name].device != device:
        raise ConfigError(f"--preset {name} is for device {PRESETS[name].device!r}, not {device!r}")
    return PRESETS[name]


def _grid(options: GridOptions, device: str, memory: bool) -> Grid:
    if options.tokens is not None and options.batch is not None:
        raise ConfigError("--tokens sets B H N and --batch sets B; give only one of them")
    return Grid(
        mechanisms=tuple(options.mechanisms) or (*_SOFTMAX[device], *_OURS),
        tokens=tuple(options.n) or (1024, 4096),
        head_dims=tuple(options.d) or (32, 64),
        heads=8 if options.heads is None else options.heads,
        batch=1 if options.batch is None else options.batch,
        budget=options.tokens,
        passes=tuple(check_choice("pass", word, PASSES) for word in options.passes or PASSES),
        memory=memory,
    )


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
    ordered = sorted(attentions, key=lambda name: name != "softmax")
    patches: list[int | None] = [None] if patch_sizes is None else [*patch_sizes]
    return tuple(
        ModelCase(model, attention, size, patch, batch, direction, compiled, autocast)
        for model, size, patch, direction, attention in product(
            models, image_sizes, patches, check_passes(passes), ordered
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
