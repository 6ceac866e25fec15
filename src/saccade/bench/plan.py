"""From the options of `saccade bench attention` to what is run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from saccade.bench.calibration import CALIBRATION_GRIDS
from saccade.bench.presets import PRESETS, Preset
from saccade.bench.shapes import DTYPES, PASSES, DTypeName, Grid
from saccade.errors import ConfigError, UnknownNameError

__all__ = ["GridOptions", "make_plan", "numbers", "words"]

T = TypeVar("T", bound=str)

_SOFTMAX = {"cuda": "sdpa-flash,sdpa-cudnn", "cpu": "sdpa"}
_OURS = "taylor-direct,taylor-efficient,taylorshift,performer"
_DTYPE: dict[str, DTypeName] = {"cuda": "bfloat16", "cpu": "float32"}
_SECONDS = {"cuda": 0.05, "cpu": 0.5}


@dataclass(frozen=True)
class GridOptions:
    """A grid as a user writes it; None is the default. Lists are separated by commas."""

    mechanisms: str | None = None
    n: str | None = None
    d: str | None = None
    heads: int | None = None
    batch: int | None = None
    tokens: int | None = None
    passes: str | None = None

    def given(self) -> list[str]:
        """The options that were set."""
        return [f"--{f.name}" for f in fields(self) if getattr(self, f.name) is not None]


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
    """The preset of a name, the grids of a calibration, or a grid made of options."""
    if preset is not None:
        plan = _from_preset(preset, device, [*options.given(), *(["--dtype"] if dtype else [])])
        if calibrate:
            raise ConfigError("--preset and --calibrate bring grids of their own; give one of them")
    else:
        if calibrate and options.given():
            raise ConfigError(f"--calibrate brings its own grid; leave out {options.given()[0]}")
        grids = CALIBRATION_GRIDS[device] if calibrate else (_grid(options, device, memory),)
        chosen = _one_of("dtype", dtype or _DTYPE[device], DTYPES)
        plan = Preset(device, chosen, grids, targets=(), seconds=_SECONDS[device])
    if seconds is not None:
        plan = replace(plan, seconds=seconds)
    return plan if threads is None else replace(plan, threads=threads)


def _from_preset(name: str, device: str, given: list[str]) -> Preset:
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    if given:
        raise ConfigError(f"--preset {name} brings its own grid; leave out {given[0]}")
    if PRESETS[name].device != device:
        raise ConfigError(f"--preset {name} is for device {PRESETS[name].device!r}, not {device!r}")
    return PRESETS[name]


def _grid(options: GridOptions, device: str, memory: bool) -> Grid:
    if options.tokens is not None and options.batch is not None:
        raise ConfigError("--tokens fixes B H N and --batch fixes B; give one of them")
    mechanisms = options.mechanisms or f"{_SOFTMAX[device]},{_OURS}"
    passes = words(options.passes or ",".join(PASSES))
    return Grid(
        mechanisms=tuple(words(mechanisms)),
        tokens=numbers("--n", options.n or "1024,4096"),
        head_dims=numbers("--d", options.d or "32,64"),
        heads=8 if options.heads is None else options.heads,
        batch=1 if options.batch is None else options.batch,
        budget=options.tokens,
        passes=tuple(_one_of("pass", word, PASSES) for word in passes),
        memory=memory,
    )


def words(text: str) -> list[str]:
    """The words of a list that is separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The integers of a list that is separated by commas."""
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise ConfigError(f"{option} {text!r}; expected integers separated by commas") from None


def _one_of(kind: str, word: str, known: tuple[T, ...]) -> T:
    for name in known:
        if name == word:
            return name
    raise UnknownNameError(kind, word, known)
