"""The run folder: the one hand-over between training and everything that comes after it.

    config.yaml         the resolved configuration
    dataset.json        classes, image size, mean and std of the data it was trained on
    environment.json    versions, hardware, git revision, seed
    initial.json        which weights it was given to start from, where it was given any
    metrics.jsonl       one JSON object a line: kind "step", "epoch" or "test"
    status.json         "running", "finished", "failed", "preempted" or "stopped", and where
    predictions.npz     target, predicted class and confidence of every test image, in their order
    summary.json        the result, fractions and seconds; only a finished run has one
    checkpoints/step-00000123/   whole or not there: written aside, synced, renamed

Reading needs no torch. A checkpoint holds a manifest with the SHA-256 of its other files, so that
one cut short is told from an intact one.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from uuid import uuid4

from saccade.config import Config, dump_config, load_config, with_values
from saccade.errors import ConfigError, reading_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Checkpoint", "RunFolder", "find_runs", "write_json", "write_text"]

MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
PREDICTIONS = "predictions.npz"
_ASIDE, _TRASH, _LOCK = ".writing-", ".trash-", ".lock"
_RUNS_BELOW = (
    "*/config.yaml",
    "runs/*/seed-*/config.yaml",
    "runs/*/seed-*/fold-*/config.yaml",
    "trials/*/config.yaml",
)
"""Where the runs are in a folder of runs, a comparison and a search."""
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, order=True)
class Checkpoint:
    """One folder under `checkpoints/`."""

    step: int
    path: Path

    def fault(self) -> str | None:
        """Why the checkpoint cannot be used, or None where every file matches the manifest.

        Raises:
            ConfigError: A file is there and cannot be read, so it may well be intact.
        """
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            for name, expected in manifest["sha256"].items():
                if _sha256(self.path / name) != expected:
                    return f"{name} is not what was written"
            return None if manifest["sha256"] else f"{MANIFEST} names no file"
        except (*_GONE, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        except OSError as error:
            raise reading_error(self.path, error) from None

    def weights(self, which: Literal["best", "last"]) -> Path:
        """The safetensors file to use a model from: averaged weights go before live ones."""
        names = ["best", "average", "model"] if which == "best" else ["average", "model"]
        files = [self.path / f"{name}.safetensors" for name in names]
        return next((file for file in files if file.exists()), files[-1])


class RunFolder:
    """A run's folder, to read or to write.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: Config) -> RunFolder:
        """Make a new run folder; one that has a run in it already is refused."""
        run = cls(path)
        run.check_free()
        run.path.mkdir(parents=True, exist_ok=True)
        run._write_config(_with_root(config, config.data.root))
        (run.path / "checkpoints").mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, run: RunFolder | str | Path) -> RunFolder:
        """Open an existing run folder, by its path or as it is."""
        run = run if isinstance(run, RunFolder) else cls(run)
        if not run.exists():
            raise ConfigError(f"{str(run.path)!r} is not a run folder: {run._what_is_there()}")
        return run

    def check_free(self) -> None:
        """Refuse a folder that has a run, or anything else, in it."""
        if self.exists():
            raise ConfigError(
                f"--out {str(self.path)!r}: a run is there already; add --resume to go on with "
                "it, or choose another folder"
            )
        if self.path.exists() and (not self.path.is_dir() or self._holds_something()):
            raise ConfigError(f"--out {str(self.path)!r}: exists and is not an empty folder")

    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").is_file()

    def _what_is_there(self) -> str:
        """What a path leads to that leads to no run."""
        if not self.path.is_dir():
            return "it is a file" if self.path.exists() else "nothing is there"
        runs = sorted(file.parent for place in _RUNS_BELOW for file in self.path.glob(place))
        below = f"; there are runs below it, such as {str(runs[0])!r}" if runs else ""
        return f"it has no config.yaml{below}"

    def _holds_something(self) -> bool:
        """Whether there is more than what a process killed at its start leaves."""
        begun = (_LOCK, ".config.yaml.")
        return any(not f.name.startswith(begun) for f in self.path.iterdir())

    def config(self) -> Config:
        """The configuration the run was started with."""
        return load_config(self.path / "config.yaml")

    def dataset(self) -> dict[str, Any]:
        """The facts about the data that the run was trained on."""
        return self._read_json("dataset.json")

    def environment(self) -> dict[str, Any]:
        """Where the run was started and resumed."""
        return self._read_json("environment.json")

    def initial(self) -> dict[str, Any]:
        """The weights the run was given to start from; empty where it was given none."""
        return self._read_json("initial.json")

    def status(self) -> dict[str, Any]:
        """The state and position last written."""
        return self._read_json("status.json")

    def summary(self) -> dict[str, Any]:
        """The result; empty where the run is not finished."""
        return self._read_json("summary.json")

    def predictions(self) -> dict[str, NDArray[Any]]:
        """`target`, `predicted` (-1 for an image that could not be read) and `confidence`.

        One entry a test image, in the order of the data set; empty where the run has none.
        """
        import numpy as np

        path = self.path / PREDICTIONS
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise ConfigError(f"{str(path)!r} cannot be read: {error}") from None

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`, a line cut short, and all after it, left out.

        Args:
            kind: Only rows of this kind: "step", "epoch" or "test".
        """
        path = self.path / METRICS
        rows = []
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        for line in text.splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return [row for row in rows if kind is None or row["kind"] == kind]

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace one of the JSON files, atomically."""
        write_json(self.path / name, values)

    def write_predictions(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write `predictions.npz`, atomically."""
        import numpy as np

        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        _write_atomically(self.path / PREDICTIONS, content.getvalue())

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to `metrics.jsonl`."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rewind_metrics(self, count: int) -> int:
        """Keep the first `count` rows, so that a resumed run does not write the others twice.

        Returns:
            How many are kept: fewer where some were lost.
        """
        rows = [json.dumps(row) + "\n" for row in self.metrics()[:count]]
        _write_atomically(self.path / METRICS, "".join(rows).encode())
        return len(rows)

    def note_data_root(self, root: Path | None) -> None:
        """Note where the data lies now."""
        saved = self.config()
        moved = _with_root(saved, root)
        if moved != saved:
            self._write_config(moved)

    def set_aside_metrics(self) -> None:
        """Keep the rows of a run that starts again for want of an intact checkpoint."""
        if (self.path / METRICS).exists():
            (self.path / METRICS).replace(self.path / f"damaged-{METRICS}")

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, oldest first, intact or not."""
        folder = self.path / "checkpoints"
        try:
            paths = [path for path in folder.iterdir() if path.name.startswith("step-")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise reading_error(folder, error) from None
        return sorted(Checkpoint(int(p.name[5:]), p) for p in paths if p.name[5:].isdigit())

    def newest_intact(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint whose hashes match, and what is wrong with any newer one."""
        faults: list[str] = []
        for checkpoint in reversed(self.checkpoints()):
            fault = checkpoint.fault()
            if fault is None:
                return checkpoint, faults
            faults.append(f"{checkpoint.path.name}: {fault}")
        return None, faults

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """A folder to fill; when the block ends it becomes `step-<step>`, whole or not at all."""
        aside = self.path / "checkpoints" / f"{_ASIDE}{step:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            yield aside
            hashes = {file.name: _sha256(file) for file in sorted(aside.iterdir())}
            for name in hashes:
                _sync(aside / name)
            manifest = json.dumps({"step": step, "sha256": hashes}, indent=2)
            _write_synced(aside / MANIFEST, manifest.encode())
            _sync(aside)
            self._sync_metrics()
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        final = aside.with_name(f"step-{step:08d}")
        self._discard(final)
        aside.rename(final)
        _sync(final.parent)

    def rotate(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints."""
        for checkpoint in self.checkpoints()[:-keep]:
            self._discard(checkpoint.path)

    def clear_leftovers(self, newest: int) -> None:
        """Delete what a killed process left half done; set aside damaged folders after `newest`."""
        folder = self.path / "checkpoints"
        for checkpoint in self.checkpoints():
            if checkpoint.step > newest:
                damaged = folder / f"damaged-{checkpoint.path.name}"
                shutil.rmtree(damaged, ignore_errors=True)
                checkpoint.path.rename(damaged)
        for leftover in [*folder.glob(f"{_ASIDE}*"), *folder.glob(f"{_TRASH}*")]:
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; a second one that trains here is refused."""
        with (self.path / _LOCK).open("w") as file:
            self._hold(file)
            _held.add(file)
            try:
                yield
            finally:
                _held.discard(file)

    def check_writable(self, config: Config) -> None:
        """Refuse a folder that a run could not write to now, as the run would; change nothing.

        A file without a name, which is gone when it is closed, is given the first content of the
        run; disks that have no such files are asked for the rights alone.

        Raises:
            ConfigError: Another process is training there.
            OSError: The folder cannot be made or written to, or its disk is full.
        """
        if (self.path / _LOCK).exists():
            with (self.path / _LOCK).open("r+") as file:  # a lock over NFS wants the right to write
                self._hold(file)
        folder = next(place for place in (self.path, *self.path.parents) if place.exists())
        try:
            unnamed = os.open(folder, getattr(os, "O_TMPFILE", os.O_DIRECTORY) | os.O_WRONLY)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                raise
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
            return
        with os.fdopen(unnamed, "wb") as file:
            file.write(dump_config(config).encode())

    def _hold(self, file: IO[Any]) -> None:
        """Lock the opened lock file until it is closed."""
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{str(self.path)!r}: another process is training here") from None

    def _write_config(self, config: Config) -> None:
        _write_atomically(self.path / "config.yaml", dump_config(config).encode())

    def _sync_metrics(self) -> None:
        """Have the rows that a checkpoint counts outlast a power failure as it does."""
        for path in (self.path / METRICS, self.path):
            if path.exists():
                _sync(path)

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint so that a kill half-way leaves nothing that looks like one."""
        if path.exists():
            trash = path.with_name(f"{_TRASH}{path.name}")
            shutil.rmtree(trash, ignore_errors=True)
            path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{str(path)!r} is not valid JSON: {error}") from None
        except OSError as error:
            raise reading_error(path, error) from None
        if not isinstance(values, dict):
            raise ConfigError(f"{str(path)!r} is not a JSON object")
        return values


_held: set[IO[Any]] = set()
"""Lock files of folders that this process holds."""


def _let_go() -> None:
    """Close what a forked process has of them: the folder is its parent's, and free with it."""
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def find_runs(folder: str | Path) -> list[RunFolder]:
    """Every run folder at or below `folder`, in the order of their paths."""
    return [RunFolder(file.parent) for file in sorted(Path(folder).rglob("config.yaml"))]


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file, atomically."""
    write_text(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a text file, atomically."""
    _write_atomically(path, text.encode())


def _with_root(config: Config, root: Path | None) -> Config:
    """The configuration with its data at a path that holds in whichever folder it is used."""
    return with_values(config, {"data.root": root and str(root.absolute())})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_atomically(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.{uuid4().hex}")  # machines may share the folder
    try:
        _write_synced(aside, content)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
