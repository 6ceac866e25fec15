"""The folder of a search. Workers share nothing else.

study.json      settings of the search: recipe, metric, number of trials, storage
base.yaml       base configuration of every trial, including the search space
study.db        Optuna's storage (study.journal with --storage journal)
claims/         which worker is running which trial
attempts/       when a worker began a trial, and how the attempt ended
trials/trial-0007/   an ordinary run folder
results.json    every trial, rewritten whenever a trial ends
best.yaml       recipe of the best trial so far
plots/          optimization history and parameter importance, as PNG and SVG
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from saccade.config import Config, dump_config, load_config
from saccade.errors import (
    ConfigError,
    TrainingError,
    UnknownNameError,
    is_transient,
    writing_error,
)
from saccade.io import (
    is_unchanged,
    make_folder,
    read_json_object,
    remove_leftovers,
    sealed,
    sync,
    unsealed,
    write_file,
)
from saccade.runs import RunFolder
from saccade.study.attempts import Attempts
from saccade.study.claims import Claims
from saccade.study.tuning.space import grid

if TYPE_CHECKING:
    import optuna

__all__ = ["METRICS", "Settings", "TuningFolder", "prepare_optuna"]

VERSION = 1
STUDY = "saccade"
STORAGES = {"sqlite": "study.db", "journal": "study.journal"}
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
        storage: `sqlite` or `journal`.
        created: Creation time in ISO format.
    """

    recipe: str
    trials: int
    metric: str = "val_accuracy"
    storage: str = "sqlite"
    created: str = ""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, got {self.trials}")
        _check_metric(self.metric)
        if self.storage not in STORAGES:
            raise UnknownNameError("storage", self.storage, STORAGES)


def _check_metric(metric: str) -> None:
    """Refuse an unknown metric, and metrics of the test set."""
    if metric.startswith("test"):
        raise ConfigError(
            f"--metric must be one of {', '.join(METRICS)}, got {metric!r}; a search must not use "
            "the test set"
        )
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)


class TuningFolder:
    """The folder of a search.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, settings: Settings) -> Self:
        """Create the folder of a new search atomically.

        Raises:
            ConfigError: `path` exists and is not an empty folder, or cannot be written.
        """
        folder = cls(path)
        folder.check_free()
        aside = cls(folder.path.with_name(f".{folder.path.name}.{os.getpid()}"))
        try:
            make_folder(aside.path.parent)
            aside.path.mkdir()
            settings = replace(settings, created=datetime.now(UTC).isoformat(timespec="seconds"))
            aside._write_settings(settings)
            write_file(aside.path / "base.yaml", dump_config(config))
            _create_storage(aside)
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
        folder.settings()
        if not folder.storage_path.is_file():
            raise ConfigError(f"{str(folder.storage_path)!r}: the study's storage is missing")
        return folder

    def exists(self) -> bool:
        """True if the folder holds a study."""
        return (self.path / "study.json").is_file()

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
            values = read_json_object(path)
            if not is_unchanged(values):
                raise ConfigError(f"{str(path)!r} was changed after it was written; restore it")
            values = unsealed(values)
            kind, version = values.pop("kind"), values.pop("version")
            if kind != "tune":
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
        with self.claims.hold("study"):
            made = len(self.load().get_trials(deepcopy=False))
            if trials < made:
                raise ConfigError(
                    f"--trials must be at least {made}, the number of trials so far, got {trials}"
                )
            self._write_settings(replace(self.settings(), trials=trials))

    @cached_property
    def claims(self) -> Claims:
        """Claims of the workers. The claim `study` guards the list of trials and the results."""
        return Claims(self.path / "claims")

    @cached_property
    def attempts(self) -> Attempts:
        """Attempts at each trial."""
        return Attempts(self.path / "attempts")

    @property
    def storage_path(self) -> Path:
        """File of Optuna's storage."""
        return self.path / STORAGES[self.settings().storage]

    def base(self) -> Config:
        """Base configuration of every trial."""
        return load_config(self.path / "base.yaml")

    def trials_wanted(self) -> int:
        """Total number of trials to run; at most the size of the grid."""
        base, trials = self.base(), self.settings().trials
        return min(trials, len(grid(base))) if base.tune.sampler == "grid" else trials

    def run(self, number: int) -> RunFolder:
        """Run folder of a trial."""
        return RunFolder(self.path / "trials" / f"trial-{number:04d}")

    def load(self) -> optuna.Study:
        """Load the search as an Optuna study."""
        prepare_optuna()
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return optuna.load_study(study_name=STUDY, storage=self._storage())
        except (
            SQLAlchemyError,
            optuna.exceptions.OptunaError,
            ValueError,
            KeyError,
            RuntimeError,
        ) as error:
            if is_transient(error):
                failed = TrainingError(f"{str(self.storage_path)!r}: the disk failed: {error}")
                failed.is_transient = True
                raise failed from None
            raise ConfigError(f"{str(self.storage_path)!r} is not the storage of a study") from None

    def _storage(self) -> optuna.storages.BaseStorage:
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = str(self.storage_path.resolve())
        if self.settings().storage == "sqlite":
            patient = {"connect_args": {"timeout": 60}}
            return RDBStorage(f"sqlite:///{path}", engine_kwargs=patient)
        return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))

    def _write_settings(self, settings: Settings) -> None:
        values = {"version": VERSION, "kind": "tune", **asdict(settings)}
        RunFolder(self.path).write("study.json", sealed(values))


def _create_storage(folder: TuningFolder) -> None:
    """Create the study in Optuna's storage.

    Raises:
        OSError: The file cannot be written, or its file system has no file locks.
    """
    prepare_optuna()
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    direction = METRICS[folder.settings().metric]
    try:
        storage = folder._storage()
        optuna.create_study(study_name=STUDY, storage=storage, direction=direction)
        storage.remove_session()
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error))
        told = f"SQLite: {reason}; the file system may have no file locks: use another disk"
        raise OSError(errno.EIO, told) from None


def prepare_optuna() -> None:
    """Check that Optuna is installed, and silence its log and experimental warnings."""
    if find_spec("optuna") is None:
        raise ConfigError("saccade tune needs Optuna: pip install 'saccade[tune]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
