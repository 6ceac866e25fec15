"""Turn the options of `saccade bench attention` into grids to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from saccade.bench.calibration import CALIBRATION_GRIDS
from saccade.bench.presets import PRESETS, Preset
from saccade.bench.shapes import DTYPES, PASSES, DTypeName, Grid
from saccade.errors import ConfigError, UnknownNameError

__all__ = ["GridOptions", "make_plan"]

T = TypeVar("T", bound=str)

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
        chosen = _one_of("dtype", _DTYPE[device] if dtype is None else dtype, DTYPES)
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
        passes=tuple(_one_of("pass", word, PASSES) for word in options.passes or PASSES),
        memory=memory,
    )


def _one_of(kind: str, word: str, known: tuple[T, ...]) -> T:
    for name in known:
        if name == word:
            return name
    raise UnknownNameError(kind, word, known)
