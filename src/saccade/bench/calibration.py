"""The calibration of `algorithm="auto"`, saved in the user's cache.

`saccade bench attention --calibrate` writes it; `ops/taylor/costs.py` describes the file. The
crossover is the number of tokens at which both algorithms are equally fast. It is interpolated
between two N of the grid. It is one less than the first N if the efficient algorithm is always
faster, and null if it is slower at the last N. Entries of other devices, dtypes and D are kept.
"""

from __future__ import annotations

from pathlib import Path

import torch

from saccade.bench.results import AttentionResult, crossover, times_over_tokens
from saccade.bench.shapes import PASSES, Grid, Pass
from saccade.errors import ConfigError
from saccade.io import write_json
from saccade.ops.taylor.costs import VERSION, costs_path, read_costs

__all__ = ["CALIBRATION_GRIDS", "crossovers_by_dim", "device_key", "write_costs"]

DIRECT, EFFICIENT = "taylor-direct", "taylor-efficient"

CALIBRATION_GRIDS = {
    "cuda": tuple(
        Grid(
            (DIRECT, EFFICIENT),
            (256, 512, 1024, 2048, 4096, 8192, 16384),
            head_dims,
            budget=budget,
            memory=False,
        )
        for head_dims, budget in (((8, 16, 32), 1 << 21), ((64, 128), 1 << 20))
    ),
    "cpu": tuple(
        Grid((DIRECT, EFFICIENT), tokens, head_dims, memory=False)
        for head_dims, tokens in (
            ((8, 16), (32, 64, 128, 256, 512, 1024)),
            ((32,), (512, 1024, 2048, 4096)),
            ((64,), (1024, 2048, 4096, 8192)),
        )
    ),
}
"""What `--calibrate` measures, by device."""


def device_key(device: torch.device) -> str:
    """Key of a device in the file."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def crossovers_by_dim(result: AttentionResult) -> dict[str, dict[str, float | None]]:
    """D -> crossover of each pass, from rows of both algorithms."""
    costs: dict[str, dict[str, float | None]] = {}
    for head_dim in sorted({row.head_dim for row in result.rows}):
        costs[str(head_dim)] = {
            f"crossover_{direction}": _crossover(result, head_dim, direction)
            for direction in PASSES
        }
    return costs


def _crossover(result: AttentionResult, head_dim: int, direction: Pass) -> float | None:
    times = {}
    for mechanism in (DIRECT, EFFICIENT):
        key = (mechanism, head_dim, direction)
        rows = [r for r in result.rows if (r.mechanism, r.head_dim, r.direction) == key]
        times[mechanism] = times_over_tokens(rows)
    found = crossover(times[DIRECT], times[EFFICIENT])
    if found is None:
        return None
    first = min(times[DIRECT].keys() & times[EFFICIENT].keys())
    return found - 1 if found == first else round(found, 1)


def write_costs(result: AttentionResult, device: torch.device, dtype: str) -> Path:
    """Save the crossovers of a run under its device and dtype, atomically; return the path.

    An existing file that is not a calibration file is replaced.
    """
    path = costs_path()
    try:
        devices = read_costs()
    except ConfigError:
        devices = {}
    table = devices.setdefault(device_key(device), {}).setdefault(dtype, {})
    table.update(crossovers_by_dim(result))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"version": VERSION, "devices": devices}, indent=1)
    return path
