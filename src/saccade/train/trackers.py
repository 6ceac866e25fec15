"""Optional destinations of metrics besides `metrics.jsonl`: TensorBoard, trackio, W&B and MLflow.

A resumed run continues its old entry. It repeats the steps after its last checkpoint with the same
values, so a row that was logged before is not logged again. TensorBoard replaces such rows itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from saccade.config import Config
from saccade.errors import ConfigError
from saccade.io import read_json_object, write_json

__all__ = ["Tracker", "check_trackers", "open_trackers"]

PROJECT = "saccade"
"""Name of the project or experiment in trackers that have them."""

EXTRAS = {"tensorboard": "track", "trackio": "track", "wandb": "wandb", "mlflow": "mlflow"}
"""The extra of this package that installs a tracker."""

Row = tuple[int, str]
"""Step and kind of a row of `metrics.jsonl`."""


class Tracker(Protocol):
    """Receives the rows of `metrics.jsonl` as they are written."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Log one row."""

    def close(self) -> None:
        """Write buffered rows and close."""


class _TensorBoard:
    """Event files in the run folder; events after the step resumed from are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    """A local trackio project; its output goes to stderr, because stdout is for results."""

    def __init__(self, name: str, *, is_new: bool) -> None:
        import trackio

        self._trackio = trackio
        with redirect_stdout(sys.stderr):
            trackio.init(project=PROJECT, name=name, resume="never" if is_new else "allow")

    def log(self, row: Mapping[str, Any]) -> None:
        self._trackio.log(_numbers(row), step=row["step"])

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._trackio.finish()


class _WeightsAndBiases:
    """A run of W&B. `WANDB_MODE`, `WANDB_ENTITY` and the other variables of W&B apply."""

    def __init__(self, folder: Path, name: str, entry: str, config: Config) -> None:
        import wandb

        with redirect_stdout(sys.stderr):
            self._run = wandb.init(
                project=PROJECT,
                id=entry,
                name=name,
                dir=str(folder),
                resume="allow",
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(console="off"),
            )

    def log(self, row: Mapping[str, Any]) -> None:
        self._run.log(_numbers(row), step=row["step"])

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


class _MLflow:
    """A run of MLflow, on the server or in the database of `MLFLOW_TRACKING_URI`.

    `entry` is MLflow's id of the run; empty for a new one, which gets the configuration.
    """

    def __init__(self, name: str, entry: str, config: Config) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        self.entry = entry
        if entry:
            self._client.update_run(entry, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else self._client.create_experiment(PROJECT)
        self.entry = self._client.create_run(experiment, run_name=name).info.run_id
        sections = {s: v for s, v in config.model_dump(mode="json").items() if isinstance(v, dict)}
        values = {f"{s}.{key}": v for s, section in sections.items() for key, v in section.items()}
        self._client.log_batch(self.entry, params=[Param(k, str(v)) for k, v in values.items()])

    def log(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), row["step"]
        metrics = [Metric(name, float(v), now, step) for name, v in _numbers(row).items()]
        self._client.log_batch(self.entry, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self.entry)


class _Once:
    """Logs each row to a tracker once, also if a resumed run writes it again."""

    def __init__(self, tracker: Tracker, logged: set[Row]) -> None:
        self._tracker, self._logged = tracker, logged

    def log(self, row: Mapping[str, Any]) -> None:
        if (row["step"], row["kind"]) not in self._logged:
            self._tracker.log(row)

    def close(self) -> None:
        self._tracker.close()


def check_trackers(names: Iterable[str]) -> None:
    """Raise if a tracker of `run.trackers` is not installed; the error says how to install it."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"run.trackers: {name!r} is not installed; pip install 'saccade[{EXTRAS[name]}]'"
            )


def open_trackers(config: Config, folder: Path, step: int, logged: set[Row]) -> list[Tracker]:
    """Open the trackers of `run.trackers`.

    Call `check_trackers` first.
    """
    path, entries = folder.resolve(), folder / "trackers.json"
    known = read_json_object(entries) if entries.exists() else {}
    name = f"{path.name}-{blake2b(str(path).encode(), digest_size=3).hexdigest()}"
    found: list[Tracker] = []
    for kind in config.run.trackers:
        entry = str(known.get(kind, ""))
        if kind == "tensorboard":
            found.append(_TensorBoard(folder, step))
            continue
        tracker: Tracker
        if kind == "trackio":
            tracker, entry = _Trackio(name, is_new=not logged), name
        elif kind == "wandb":
            entry = entry or uuid4().hex
            tracker = _WeightsAndBiases(folder, name, entry, config)
        else:
            tracker = service = _MLflow(name, entry, config)
            entry = service.entry
        known[kind] = entry
        found.append(_Once(tracker, logged))
        write_json(entries, known)
    return found


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, with the kind of the row before their names."""
    kind, skipped = row["kind"], {"step", "kind"}
    numbers = {k: v for k, v in row.items() if k not in skipped and isinstance(v, int | float)}
    return {f"{kind}/{name}": value for name, value in numbers.items()}
