"""The calibration file: its place, its format, and reading it.

`saccade bench attention --calibrate` writes `attention_costs.json` into `$XDG_CACHE_HOME/saccade`
(`~/.cache/saccade` by default):

    {"version": 1,
     "devices": {"NVIDIA H200": {"bfloat16": {"32": {"crossover_forward": 812.3,
                                                     "crossover_training": 1033.9}}}}}

The keys are the device (`torch.cuda.get_device_name()`, or `cpu`), the dtype without `torch.`, and
D. The efficient algorithm is taken for more tokens than the crossover; null means never.
"""

import functools
import os
import warnings
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError, shorten
from saccade.io import Limits, read_json_object

__all__ = ["VERSION", "costs_path", "read_costs", "read_costs_once"]

VERSION = 1
_LIMITS = Limits(size=1 << 20, depth=8, items=20_000)
_PASSES = ("crossover_forward", "crossover_training")
_MAX_TOKENS = 2**53

Costs = dict[str, dict[str, dict[str, dict[str, float | None]]]]
"""Device -> dtype -> head dim -> crossover of each pass."""


def costs_path() -> Path:
    """The path of the calibration file.

    Raises:
        ConfigError: The home folder is unknown, and XDG_CACHE_HOME is not set.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return root.expanduser() / "saccade" / "attention_costs.json"
    except RuntimeError:
        raise ConfigError(
            "XDG_CACHE_HOME must be a folder if the home folder is unknown, got nothing"
        ) from None


def read_costs() -> Costs:
    """The content of the calibration file; empty without a file.

    Raises:
        ConfigError: The file cannot be read, or is not what calibration writes.
    """
    try:
        path = costs_path()
    except ConfigError:
        return {}
    if not os.path.lexists(path):
        return {}
    document = read_json_object(path, limits=_LIMITS)
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        got = shorten(repr(document.get("version")), 40)
        raise ConfigError(f"{str(path)!r}: version must be {VERSION}, got {got}")
    devices: Costs = _table(document.get("devices"), path, "devices")
    for device, dtypes in devices.items():
        for dtype, dims in _table(dtypes, path, "devices", device).items():
            for dim, costs in _table(dims, path, "devices", device, dtype).items():
                for name, value in _table(costs, path, "devices", device, dtype, dim).items():
                    _check_crossover(value, path, "devices", device, dtype, dim, name)
    return devices


@functools.cache
def read_costs_once() -> Costs:
    """As `read_costs`, once per process; an invalid file is ignored with a warning."""
    try:
        return read_costs()
    except ConfigError as error:
        again = "calibrate again with `saccade bench attention --calibrate`"
        warnings.warn(f"ignored the calibration: {error} ({again})", stacklevel=2)
        return {}


def _table(value: Any, path: Path, *keys: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _error(path, keys, "an object", value)


def _check_crossover(value: Any, path: Path, *keys: str) -> None:
    """Raise if a crossover is not a number of tokens; unknown keys are ignored."""
    if keys[-1] not in _PASSES or value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MAX_TOKENS:  # NaN is neither
        raise _error(path, keys, f"null or a number from 0 to {_MAX_TOKENS}", value)


def _error(path: Path, keys: tuple[str, ...], accepted: str, value: Any) -> ConfigError:
    name, got = shorten(".".join(keys), 120), shorten(repr(value), 40)
    return ConfigError(f"{str(path)!r}: {name} must be {accepted}, got {got}")
