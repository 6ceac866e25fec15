"""Optional destinations of metrics besides `metrics.jsonl`: TensorBoard and trackio."""

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
    """Receives the rows of `metrics.jsonl` as they are written."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Log one row."""

    def close(self) -> None:
        """Write buffered rows and close."""


class TensorBoard:
    """Event files in the run folder; events after the step resumed from are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, row: Mapping[str, Any]) -> None:
        """Log one row."""
        for name, value in _numbers(row).items():
            self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])

    def close(self) -> None:
        """Write buffered rows and close."""
        self._writer.close()


class Trackio:
    """A local trackio project named `saccade`; a resumed run continues its old entry.

    The name of an entry is that of the run folder plus a part of the hash of its path, because the
    run folders of different comparisons have the same names. Steps repeated after a kill appear
    twice. Trackio's output goes to stderr, because stdout is for results.
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
        """Log one row."""
        values = {f"{row['kind']}/{k}": v for k, v in _numbers(row).items()}
        self._trackio.log(values, step=row["step"])

    def close(self) -> None:
        """Write buffered rows and close."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()


_TRACKERS: dict[str, type[TensorBoard] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}


def check_trackers(names: Iterable[str]) -> None:
    """Raise if a tracker of `run.trackers` is not installed; the error says how to install it."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"run.trackers: {name!r} is not installed; pip install 'saccade[track]'"
            )


def open_trackers(names: Iterable[str], folder: Path, step: int) -> list[Tracker]:
    """Open the trackers of `run.trackers` for a run that starts or resumes after `step`.

    Call `check_trackers` first.
    """
    return [_TRACKERS[name](folder, step) for name in names]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    skipped = {"step", "kind"}
    return {k: v for k, v in row.items() if k not in skipped and isinstance(v, int | float)}
