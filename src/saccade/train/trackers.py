"""Optional places that metrics go besides `metrics.jsonl`: TensorBoard and trackio."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from saccade.errors import ConfigError

__all__ = ["Tracker", "check_trackers", "open_trackers"]


class Tracker(Protocol):
    """Takes the rows of `metrics.jsonl` as they come."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on one row."""

    def close(self) -> None:
        """Write out what is left."""


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on one row."""
        for name, value in _numbers(row).items():
            self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()


class Trackio:
    """A local trackio project named `saccade`; a resumed run goes on where it was.

    What trackio prints goes to stderr: stdout is for results.
    """

    def __init__(self, folder: Path) -> None:
        import trackio

        self._trackio = trackio
        resume = "allow" if (folder / "metrics.jsonl").exists() else "never"
        with redirect_stdout(sys.stderr):
            trackio.init(project="saccade", name=folder.name, resume=resume)

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on one row."""
        values = {f"{row['kind']}/{k}": v for k, v in _numbers(row).items()}
        self._trackio.log(values, step=row["step"])

    def close(self) -> None:
        """Write out what is left."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()


_TRACKERS: dict[str, type[TensorBoard] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}


def check_trackers(names: Iterable[str]) -> None:
    """Raise for a tracker of `run.trackers` that is not installed, and say how to install it."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"run.trackers: {name!r} is not installed; pip install 'saccade[track]'"
            )


def open_trackers(names: Iterable[str], folder: Path) -> list[Tracker]:
    """Open the trackers of `run.trackers`, which `check_trackers` has found to be installed."""
    return [_TRACKERS[name](folder) for name in names]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    skipped = {"step", "kind"}
    return {k: v for k, v in row.items() if k not in skipped and isinstance(v, int | float)}
