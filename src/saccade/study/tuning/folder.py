"""The folder of a search.

study.json      settings of the search: recipe, metric, number of trials, storage
base.yaml       base configuration of every trial, including the search space
study.journal   Optuna's storage, unless it is a PostgreSQL database
attempts/       when a worker began a trial, and how the attempt ended
trials/trial-0007/   an ordinary run folder
results.json    every trial, rewritten whenever a trial ends
best.yaml       recipe of the best trial so far
plots/          optimization history and parameter importance, as PNG and SVG
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import uuid4

from saccade.config import Config, dump_config
from saccade.errors import (
    ConfigError,
    UnknownNameError,
    writing_error,
)
from saccade.io import (
    make_folder,
    remove_leftovers,
    sync,
    write_file,
)
from saccade.runs import RunFolder
from saccade.study.folder import StudyFolder, sha256_text
from saccade.study.tuning import storage
from saccade.study.tuning.space import base_point, grid
from saccade.study.tuning.storage import JOURNAL

if TYPE_CHECKING:
    import optuna

__all__ = ["METRICS", "Settings", "TuningFolder"]

VERSION = 1
STUDY = "saccade"
METRICS: dict[str, Literal["maximize", "minimize"]] = {
    "val_accuracy": "maximize",
    "val_loss": "minimize",
}
"""Metrics that a search can optimize, with their direction."""


@dataclass(frozen=True)
class Settings:
    """Settings of a search, as saved in `study.json`.

    Attributes:
        recipe: Name or path of the recipe.
        trials: Total number of trials, over all workers and resumes.
        metric: Metric to optimize, one of `METRICS`.
        storage: `journal` for a file in the folder, or a PostgreSQL database as
            `postgresql://user@host/database`.
        study: Name of Optuna's study in the storage.
        created: Creation time in ISO format.
        base_sha256: SHA-256 of `base.yaml`; empty in searches of earlier versions.
        starts_at_base: True if the first trial has the values of the base configuration.
    """

    recipe: str
    trials: int
    metric: str = "val_accuracy"
    storage: str = JOURNAL
    study: str = STUDY
    created: str = ""
    base_sha256: str = ""
    starts_at_base: bool = False

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, got {self.trials}")
        _check_metric(self.metric)
        storage.check_storage(self.storage)


def _check_metric(metric: str) -> None:
    """Refuse an unknown metric, and metrics of the test set."""
    if metric.startswith("test"):
        raise ConfigError(
            f"--metric must be one of {', '.join(METRICS)}, got {metric!r}; a search must not use "
            "the test set"
        )
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)


class TuningFolder(StudyFolder):
    """A search on disk."""

    kind = "tune"

    @classmethod
    def create(cls, path: str | Path, config: Config, settings: Settings) -> Self:
        """Create the folder of a new search atomically."""
        folder = cls(path)
        folder.check_free()
        aside = cls(folder.path.with_name(f".{folder.path.name}.{os.getpid()}"))
        try:
            make_folder(aside.path.parent)
            aside.path.mkdir()
            if settings.storage != JOURNAL:  # which other searches may share
                settings = replace(settings, study=f"{STUDY}-{uuid4().hex}")
            now, base = datetime.now(UTC).isoformat(timespec="seconds"), dump_config(config)
            aside._write_settings(replace(settings, created=now, base_sha256=sha256_text(base)))
            write_file(aside.path / "base.yaml", base)
            direction = METRICS[settings.metric]
            storage.create_study(settings.storage, aside.journal, settings.study, direction)
            aside.enqueue()
            aside.path.rename(folder.path)
            sync(folder.path.parent)
        except OSError as error:
            folder.check_free()
            message = f"--out {str(path)!r}: cannot write there"
            raise writing_error(message, error, ConfigError) from None
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder of an existing search."""
        folder = cls(path)
        if not folder.exists():
            raise ConfigError(f"{str(path)!r} is not the folder of a search: no study.json")
        remove_leftovers(folder.path)
        if folder.settings().storage == JOURNAL:
            if not folder.journal.is_file():
                raise ConfigError(f"{str(folder.journal)!r}: the study's storage is missing")
            storage.cut_torn_line(folder.journal)
        return folder

    def check_free(self) -> None:
        """Refuse a path that exists, unless it is an empty folder."""
        if self.exists():
            raise ConfigError(
                f"--out {str(self.path)!r} already holds a study; add --resume to go on with it, "
                "or choose another folder"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"--out must be a new or empty folder, got {str(self.path)!r}")

    def settings(self) -> Settings:
        """The settings saved in `study.json`."""
        path = self.path / "study.json"
        try:
            values = self.read("study.json")
            kind, version = values.pop("kind"), values.pop("version")
            if kind != self.kind:
                raise ConfigError(f"{str(path)!r} must be of a search, got a {kind!r} study")
            if version > VERSION:
                raise ConfigError(
                    f"{str(path)!r} has version {version}, of a newer saccade; upgrade saccade"
                )
            return Settings(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{str(path)!r} is not the study.json of a search") from None

    def set_trials(self, trials: int) -> None:
        """Change the total number of trials. Running workers use the new number."""
        states = [trial.state.name for trial in self.load().get_trials(deepcopy=False)]
        made = len(states) - states.count("WAITING")
        if trials < made:
            raise ConfigError(
                f"--trials must be at least {made}, the number of trials so far, got {trials}"
            )
        self._write_settings(replace(self.settings(), trials=trials))
        self.enqueue()

    def enqueue(self) -> None:
        """Add the trials that the study lacks, to be taken by workers."""
        study, base = self.load(), self.base()
        first = base_point(base) if self.settings().starts_at_base else {}
        points = grid(base) if base.tune.sampler == "grid" else [first]
        for number in range(len(study.get_trials(deepcopy=False)), self.trials_wanted()):
            study.enqueue_trial(points[number] if number < len(points) else {})

    @property
    def journal(self) -> Path:
        """File of Optuna's storage, if the storage is a file."""
        return self.path / "study.journal"

    def base(self) -> Config:
        """Base configuration of every trial."""
        sha256 = self.settings().base_sha256
        return self.read_base([sha256] if sha256 else [])

    def identity(self) -> dict[str, Any]:
        """What tells this search from others, for `results.json`."""
        return {"attention": self.base().model.attention, "created": self.settings().created}

    def trials_wanted(self) -> int:
        """Total number of trials to run; at most the size of the grid."""
        base, trials = self.base(), self.settings().trials
        return min(trials, len(grid(base))) if base.tune.sampler == "grid" else trials

    def run(self, number: int) -> RunFolder:
        """Run folder of a trial."""
        return RunFolder(self.path / "trials" / f"trial-{number:04d}")

    def load(self) -> optuna.Study:
        """Load the search as an Optuna study."""
        settings = self.settings()
        return storage.load_study(settings.storage, self.journal, settings.study)

    def _write_settings(self, settings: Settings) -> None:
        self.write("study.json", {"version": VERSION, "kind": self.kind, **asdict(settings)})
