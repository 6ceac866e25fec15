"""Optional places that metrics go besides `metrics.jsonl`: TensorBoard and trackio."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from hashlib import blake2b
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
    """Event files in the run folder; what came after the step gone on from is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, row: Mapping[str, Any]) -> None:
        """Pass on one row."""
        for name, value in _numbers(row).items():
            self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()


class Trackio:
    """A local trackio project named `saccade`; a resumed run goes on where it was.

    A run is called as its folder, with a part of the hash of its path, since the folders of a
    comparison are called alike. Steps that are taken again after a kill are in it twice. What
    trackio prints goes to stderr: stdout is for results.
    """

    def __init__(self, folder: Path, _step: int) -> None:
        import trackio

        self._trackio = trackio
        resume = "allow" if (folder / "metrics.jsonl").exists() else "never"
        path = folder.resolve()
        name = f"{path.name}-{blake2b(str(path).encode(), digest_size=3).hexdigest()}"
        with redirect_stdout(sys.stderr):
            trackio.init(project="saccade", name=name, resume=resume)

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


def open_trackers(names: Iterable[str], folder: Path, step: int) -> list[Tracker]:
    """Open the trackers of `run.trackers` for a run that begins, or goes on, after a step.

    `check_trackers` has found them to be installed.
    """
    return [_TRACKERS[name](folder, step) for name in names]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    skipped = {"step", "kind"}
    return {k: v for k, v in row.items() if k not in skipped and isinstance(v, int | float)}
