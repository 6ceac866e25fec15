"""Optuna's storage of a search: a journal file in its folder, or a PostgreSQL database."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from saccade.errors import ConfigError, TrainingError, UnknownNameError
from saccade.io import read_bytes

if TYPE_CHECKING:
    import optuna

__all__ = [
    "JOURNAL",
    "check_storage",
    "create_study",
    "cut_torn_line",
    "load_study",
    "prepare_optuna",
]

JOURNAL = "journal"
POSTGRESQL = "postgresql://"
EXAMPLE = f"{POSTGRESQL}USER@HOST/DATABASE"


def check_storage(storage: str) -> None:
    """Refuse an unknown storage, and a password, which `study.json` would show."""
    if storage == "sqlite":
        raise ConfigError(
            f"--storage must be {JOURNAL} or {EXAMPLE}, got 'sqlite'; a search that an earlier "
            "version began with SQLite cannot be continued"
        )
    if storage != JOURNAL and not storage.startswith(POSTGRESQL):
        raise UnknownNameError("storage", storage, [JOURNAL, EXAMPLE])
    if ":" in storage.removeprefix(POSTGRESQL).rpartition("@")[0]:
        raise ConfigError(
            "--storage must not contain a password; put it into ~/.pgpass or into PGPASSWORD"
        )
    if storage != JOURNAL and find_spec("psycopg") is None:
        raise ConfigError("--storage postgresql:// needs psycopg: pip install 'saccade[cluster]'")


def load_study(storage: str, journal: Path, name: str) -> optuna.Study:
    """Load a study.

    Raises:
        ConfigError: The storage is not one of Optuna, or lacks the study.
        TrainingError: The database does not answer; another try may succeed.
    """
    prepare_optuna()
    import optuna
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    damaged = (SQLAlchemyError, optuna.exceptions.OptunaError, ValueError, KeyError, RuntimeError)
    try:
        return optuna.load_study(study_name=name, storage=_open(storage, journal))
    except OperationalError as error:
        failed = TrainingError(f"the database failed: {_reason(error)}; go on with --resume")
        failed.is_transient = True
        raise failed from None
    except damaged:
        place = str(journal) if storage == JOURNAL else storage
        raise ConfigError(f"{place!r} is not the storage of a study") from None


def create_study(
    storage: str, journal: Path, name: str, direction: Literal["maximize", "minimize"]
) -> None:
    """Create a study; arguments as for `load_study`."""
    prepare_optuna()
    import optuna
    from sqlalchemy.exc import OperationalError

    try:
        optuna.create_study(study_name=name, storage=_open(storage, journal), direction=direction)
    except OperationalError as error:
        raise ConfigError(f"--storage {storage}: {_reason(error)}") from None


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


def prepare_optuna() -> None:
    """Check that Optuna is installed, and silence its log and experimental warnings."""
    if find_spec("optuna") is None:
        raise ConfigError("saccade tune needs Optuna: pip install 'saccade[tune]'")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def _open(storage: str, journal: Path) -> optuna.storages.BaseStorage:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    if storage != JOURNAL:
        return RDBStorage(storage.replace(POSTGRESQL, "postgresql+psycopg://", 1))
    path = str(journal.resolve())
    return JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path)))


def _reason(error: Exception) -> str:
    """The database's own words, in one line."""
    return " ".join(str(getattr(error, "orig", error)).split())
