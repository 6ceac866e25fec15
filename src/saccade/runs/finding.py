"""Find the run folders below a folder."""

from __future__ import annotations

from pathlib import Path

_RUNS_BELOW = (
    "*/config.yaml",
    "runs/*/seed-*/config.yaml",
    "runs/*/seed-*/fold-*/config.yaml",
    "trials/*/config.yaml",
)
"""Glob patterns of runs in a folder of runs, a comparison and a search."""
_MARKS = ("config.yaml", "status.json")
"""Files of every run that has begun. A run that lost one of them is still found."""
_CHECKPOINTS = "checkpoints"


def run_paths(folder: Path) -> list[Path]:
    """The run folders at or below a folder, sorted; also those that lost their `config.yaml`."""
    found = {file.parent for mark in _MARKS for file in folder.rglob(mark)}
    return sorted(path for path in found if path.parent.name != _CHECKPOINTS)


def no_run_reason(path: Path) -> str:
    """Describe a path that is not a run folder."""
    if not path.is_dir():
        return "it is a file" if path.exists() else "nothing is there"
    runs = sorted(file.parent for place in _RUNS_BELOW for file in path.glob(place))
    below = f"; there are runs below it, such as {str(runs[0])!r}" if runs else ""
    return f"it has no config.yaml{below}"
