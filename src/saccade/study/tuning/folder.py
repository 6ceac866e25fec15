"""The folder of a search, which is all that its workers share.

study.json      what was asked for: recipe, metric, how many trials, storage
base.yaml       the configuration that every trial starts from, search space included
study.db        Optuna's storage (study.journal with --storage journal)
claims/         which worker has which trial
trials/trial-0007/   an ordinary run folder
results.json    every trial, rewritten as each one ends
best.yaml       the recipe of the best trial so far
plots/          how the search went and what mattered, PNG and SVG
"""

from __future__ import annotations

import json
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
from saccade.errors import ConfigError, UnknownNameError, writing_error
from saccade.runs import RunFolder
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
"""What a search can go by, and which way is better."""


@dataclass(frozen=True)
class Settings:
    """What a search was asked to do, as in `study.json`.

    Attributes:
        recipe: Name or path of the recipe it began with.
        trials: How many are wanted, over all workers and resumes.
        metric: One of `METRICS`.
        storage: `sqlite` or `journal`.
    """

    recipe: str
    trials: int
    metric: str = "val_accuracy"
    storage: str = "sqlite"
    created: str = ""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"--trials {self.trials}: wants at least 1")
        _check_metric(self.metric)
        if self.storage not in STORAGES:
            raise UnknownNameError("storage", self.storage, STORAGES)


def _check_metric(metric: str) -> None:
    """Refuse a metric that a search cannot, or must not, go by."""
    if metric.startswith("test"):
        raise ConfigError(
            f"--metric {metric!r}: a search never looks at the test set, or its result would "
            f"mean nothing; accepted: {', '.join(METRICS)}"
        )
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)


class TuningFolder:
    """A search's folder, to work in.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, settings: Settings) -> Self:
        """Make the folder of a new search, whole or not at all.

        Raises:
            ConfigError: There is something at `path`.
        """
        folder = cls(path)
        folder.check_free()
        aside = cls(folder.path.with_name(f".{folder.path.name}.{os.getpid()}"))
        try:
            aside.path.mkdir(parents=True)
            settings = replace(settings, created=datetime.now(UTC).isoformat(timespec="seconds"))
            aside._write_settings(settings)
            (aside.path / "base.yaml").write_text(dump_config(config), encoding="utf-8")
            aside._create_storage()
            aside.path.rename(folder.path)
        except OSError as error:
            folder.check_free()
            told = f"--out {str(path)!r}: cannot write there"
            raise writing_error(told, error, ConfigError) from None
        finally:
            shutil.rmtree(aside.path, ignore_errors=True)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the folder of a search that was started already."""
        folder = cls(path)
        if not folder.exists():
            raise ConfigError(f"{str(path)!r} is not the folder of a search: no study.json")
        folder.settings()
        if not folder.storage_path.is_file():
            raise ConfigError(f"{str(folder.storage_path)!r}: the study's storage is missing")
        return folder

    def exists(self) -> bool:
        """Whether something was studied here."""
        return (self.path / "study.json").is_file()

    def check_free(self) -> None:
        """Refuse a folder that has a search, or anything else, in it."""
        if self.exists():
            raise ConfigError(
                f"--out {str(self.path)!r}: a study is there already; add --resume to go on with "
                "it, or choose another folder"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"--out {str(self.path)!r}: exists and is not an empty folder")

    def settings(self) -> Settings:
        """What was asked for."""
        path = self.path / "study.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            kind, version = values.pop("kind"), values.pop("version")
            if kind != "tune":
                raise ConfigError(f"{str(path)!r}: a {kind!r} study, not a search")
            if version > VERSION:
                raise ConfigError(f"{str(path)!r}: version {version} is of a newer saccade")
            return Settings(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{str(path)!r} is not the study.json of a search") from None

    def set_trials(self, trials: int) -> None:
        """Change how many trials are wanted; workers that are at it take notice."""
        with self.claims.hold("study"):
            made = len(self.load().get_trials(deepcopy=False))
            if trials < made:
                raise ConfigError(f"--trials {trials}: {made} were made already")
            self._write_settings(replace(self.settings(), trials=trials))

    @cached_property
    def claims(self) -> Claims:
        """Who has what; `study` is the claim on the list of trials and on the results."""
        return Claims(self.path / "claims")

    @property
    def storage_path(self) -> Path:
        """Optuna's file."""
        return self.path / STORAGES[self.settings().storage]

    def base(self) -> Config:
        """The configuration that every trial starts from."""
        return load_config(self.path / "base.yaml")

    def trials_wanted(self) -> int:
        """How many trials there are to be: as many as asked for, or the whole grid."""
        base, trials = self.base(), self.settings().trials
        return min(trials, len(grid(base))) if base.tune.sampler == "grid" else trials

    def run(self, number: int) -> RunFolder:
        """The run folder of a trial."""
        return RunFolder(self.path / "trials" / f"trial-{number:04d}")

    def load(self) -> optuna.Study:
        """Optuna's view of the search."""
        prepare_optuna()
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return optuna.load_study(study_name=STUDY, storage=self._storage())
        except (SQLAlchemyError, optuna.exceptions.OptunaError, ValueError, KeyError, RuntimeError):
            raise ConfigError(f"{str(self.storage_path)!r} is not the storage of a study") from None

    def _storage(self) -> optuna.storages.BaseStorage:
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = str(self.storage_path.resolve())
        if self.settings().storage == "sqlite":
            patient = {"connect_args": {"timeout": 60}}
            return RDBStorage(f"sqlite:///{path}", engine_kwargs=patient)
        return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))

    def _create_storage(self) -> None:
        prepare_optuna()
        import optuna

        direction = METRICS[self.settings().metric]
        storage = self._storage()
        optuna.create_study(study_name=STUDY, storage=storage, direction=direction)
        storage.remove_session()

    def _write_settings(self, settings: Settings) -> None:
        values = {"version": VERSION, "kind": "tune", **asdict(settings)}
        RunFolder(self.path).write("study.json", values)


def prepare_optuna() -> None:
    """See that Optuna is there, and spare the user its log and what it says is experimental."""
    if find_spec("optuna") is None:
        raise ConfigError("saccade tune needs Optuna: pip install 'saccade[tune]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
