"""The folder of a search. Workers share nothing else.

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
import warnings
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from uuid import uuid4

from saccade.config import Config, dump_config, load_config
from saccade.errors import (
    ConfigError,
    TrainingError,
    UnknownNameError,
    writing_error,
)
from saccade.io import make_folder, read_bytes, read_json_object, remove_leftovers, sync, write_file
from saccade.runs import RunFolder
from saccade.study.attempts import Attempts
from saccade.study.tuning.space import grid

if TYPE_CHECKING:
    import optuna

__all__ = ["METRICS", "Settings", "TuningFolder", "prepare_optuna"]

VERSION = 1
STUDY = "saccade"
JOURNAL = "journal"
POSTGRESQL = "postgresql://"
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
    """

    recipe: str
    trials: int
    metric: str = "val_accuracy"
    storage: str = JOURNAL
    study: str = STUDY
    created: str = ""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials must be at least 1, got {self.trials}")
        _check_metric(self.metric)
        _check_storage(self.storage)


def _check_metric(metric: str) -> None:
    """Refuse an unknown metric, and metrics of the test set."""
    if metric.startswith("test"):
        raise ConfigError(
            f"--metric must be one of {', '.join(METRICS)}, got {metric!r}; a search must not use "
            "the test set"
        )
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)


def _check_storage(storage: str) -> None:
    """Refuse an unknown storage, and a password, which `study.json` would show."""
    if storage == "sqlite":
        raise ConfigError(
            f"--storage must be {JOURNAL} or {POSTGRESQL}USER@HOST/DATABASE, got 'sqlite'; a "
            "search that an earlier version began with SQLite cannot be continued"
        )
    if not storage.startswith(POSTGRESQL):
        if storage != JOURNAL:
            raise UnknownNameError("storage", storage, [JOURNAL, f"{POSTGRESQL}USER@HOST/DATABASE"])
    elif ":" in storage.removeprefix(POSTGRESQL).rpartition("@")[0]:
        raise ConfigError(
            "--storage must not contain a password; put it into ~/.pgpass or into PGPASSWORD"
        )


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
            if settings.storage != JOURNAL:  # which other searches may share
                settings = replace(settings, study=f"{STUDY}-{uuid4().hex}")
            settings = replace(settings, created=datetime.now(UTC).isoformat(timespec="seconds"))
            aside._write_settings(settings)
            write_file(aside.path / "base.yaml", dump_config(config))
            aside._create_storage()
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
            cut_torn_line(folder.journal)
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
        points = grid(base) if base.tune.sampler == "grid" else None
        for number in range(len(study.get_trials(deepcopy=False)), self.trials_wanted()):
            study.enqueue_trial(points[number] if points is not None else {})

    @cached_property
    def attempts(self) -> Attempts:
        """Attempts at each trial."""
        return Attempts(self.path / "attempts")

    @property
    def journal(self) -> Path:
        """File of Optuna's storage, if the storage is a file."""
        return self.path / "study.journal"

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
        from sqlalchemy.exc import OperationalError, SQLAlchemyError

        try:
            return optuna.load_study(study_name=self.settings().study, storage=self._storage())
        except OperationalError as error:
            raise _unreachable(error) from None
        except (
            SQLAlchemyError,
            optuna.exceptions.OptunaError,
            ValueError,
            KeyError,
            RuntimeError,
        ):
            where = self.settings().storage
            place = str(self.journal) if where == JOURNAL else where
            raise ConfigError(f"{place!r} is not the storage of a study") from None

    def _storage(self) -> optuna.storages.BaseStorage:
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        if (url := self.settings().storage) != JOURNAL:
            return RDBStorage(url.replace(POSTGRESQL, "postgresql+psycopg://", 1))
        path = str(self.journal.resolve())
        return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))

    def _create_storage(self) -> None:
        prepare_optuna()
        import optuna
        from sqlalchemy.exc import OperationalError

        settings = self.settings()
        direction = METRICS[settings.metric]
        try:
            storage = self._storage()
            optuna.create_study(study_name=settings.study, storage=storage, direction=direction)
        except OperationalError as error:
            raise ConfigError(f"--storage {settings.storage}: {_reason(error)}") from None
        storage.remove_session()
        self.enqueue()

    def _write_settings(self, settings: Settings) -> None:
        values = {"version": VERSION, "kind": "tune", **asdict(settings)}
        RunFolder(self.path).write("study.json", values)


def cut_torn_line(journal: Path) -> None:
    """Remove the part of a line that a power failure left at the end of a journal.

    Optuna would append to it, and could then not read the journal.
    """
    content = read_bytes(journal)
    if not content or content.endswith(b"\n"):
        return
    from optuna.storages.journal import JournalFileOpenLock

    lock = JournalFileOpenLock(str(journal.resolve()))
    lock.acquire()  # a worker may have been writing
    try:
        content = read_bytes(journal)
        os.truncate(journal, content.rfind(b"\n") + 1)
    finally:
        lock.release()


def _unreachable(error: Exception) -> TrainingError:
    """The error to raise if the database does not answer; another try may succeed."""
    failed = TrainingError(f"the database failed: {_reason(error)}; go on with --resume")
    failed.is_transient = True
    return failed


def _reason(error: Exception) -> str:
    """The database's own words, in one line."""
    return " ".join(str(getattr(error, "orig", error)).split())


def prepare_optuna() -> None:
    """Check that Optuna is installed, and silence its log and experimental warnings."""
    if find_spec("optuna") is None:
        raise ConfigError("saccade tune needs Optuna: pip install 'saccade[tune]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
