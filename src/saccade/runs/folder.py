"""The run folder: everything that training writes and that other commands read.

    config.yaml         the resolved configuration
    dataset.json        classes, image size, mean and std of the training data
    split.json.gz       the images of the training, validation and test split, with their hashes
    environment.json    versions, hardware, git revision, seed and id of the run
    initial.json        the initial weights, if the run started from given ones
    metrics.jsonl       one JSON object per line, of kind "step", "epoch" or "test"
    status.json         state of the run: "running", "finished", "failed", "preempted", "stopped" or
                        "interrupted" (in a study: to be tried again)
    predictions.npz     target, predicted class and confidence of all test images, in order
    summary.json        the result, as fractions and seconds
    manifest.json       SHA-256 and size of these files, once the run is finished (`manifest.py`)
    checkpoints/step-00000123/   complete or absent: written elsewhere, synced, then renamed

Reading does not import torch. `status.json` is the last file that a run writes. Files are verified
when they are read: those of a finished run against its manifest, those of another run against its
newest checkpoint (`manifest.py`). Each checkpoint has its own manifest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from saccade.config import Config, dump_config, parse_config, with_values
from saccade.errors import ConfigError, DamagedRunError, RunLockedError, TakenOver, reading_error
from saccade.io import (
    CONFIG_LIMITS,
    MAX_BYTES,
    RECORD_LIMITS,
    append_text,
    check_writable,
    locked,
    make_folder,
    open_lock,
    parse_arrays,
    parse_json_object,
    read_bytes,
    read_json_object,
    remove_leftovers,
    sha256_file,
    sync,
    try_lock,
    write_file,
    write_json,
)
from saccade.runs.checkpoints import (
    METRICS,
    TRASH,
    Checkpoint,
    copy_metrics,
    parse_rows,
)
from saccade.runs.finding import no_run_reason, run_paths
from saccade.runs.manifest import (
    DESCRIPTIONS,
    MANIFEST,
    RUN,
    SPLIT,
    Descriptions,
    Manifest,
    contradiction,
    describe,
    write_manifest,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREDICTIONS = "predictions.npz"
_MAX_SPLIT_BYTES = 1 << 30
_ASIDE, _LOCK, _OWNER = ".writing-", ".lock", ".owner"
MAX_METRICS = 1 << 30
MENDABLE = {METRICS, PREDICTIONS, "summary.json"}
"""Files that a resumed run can write again from its last checkpoint."""
NO_MANIFEST = "it has no manifest, so its files cannot be checked"
"""Warning for a finished run of an older saccade."""


class RunFolder:
    """Reads and writes one run folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._token = ""  # set while this process holds the folder
        self._described: dict[str, Any] = {}  # what checkpoints hold the description to
        self._checked: dict[Path, tuple[object, str | None]] = {}

    @classmethod
    def create(cls, path: str | Path, config: Config) -> RunFolder:
        """Create a run folder.

        Raises:
            ConfigError: The folder already contains a run, or other files.
        """
        run = cls(path)
        run.check_free()
        make_folder(run.path)
        run._write_config(_with_root(config, config.data.root))
        (run.path / "checkpoints").mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, run: RunFolder | str | Path) -> RunFolder:
        """Open an existing run folder, given as a path or as a `RunFolder`."""
        run = run if isinstance(run, RunFolder) else cls(run)
        if not run.exists():
            raise ConfigError(f"{str(run.path)!r} is not a run folder: {no_run_reason(run.path)}")
        remove_leftovers(run.path)
        return run

    def check_free(self) -> None:
        """Raise `ConfigError` if the folder contains a run or other files."""
        if self.exists():
            raise ConfigError(
                f"--out {str(self.path)!r}: a run is there already; add --resume to continue it, "
                "or choose another folder"
            )
        if self.path.exists() and (not self.path.is_dir() or self._holds_something()):
            raise ConfigError(f"--out {str(self.path)!r}: exists and is not an empty folder")

    def exists(self) -> bool:
        """True if a run was started in this folder."""
        return (self.path / "config.yaml").is_file()

    def _holds_something(self) -> bool:
        """True if the folder has files other than those of a process that ended before its run.

        Such a process may leave locks and temporary files. A study writes a status for it.
        """
        begun = (_LOCK, _OWNER, f".{_OWNER}.", ".config.yaml.", "status.json", ".status.json.")
        return any(not f.name.startswith(begun) for f in self.path.iterdir())

    def config(self) -> Config:
        """The configuration the run was started with."""
        path = self.path / "config.yaml"
        content = read_bytes(path, limit=CONFIG_LIMITS.size)
        self._hold(path.name, content)
        config = parse_config(content, path)
        if held := self._descriptions():
            held.check_config(self.path, config)
        return config

    def dataset(self) -> dict[str, Any]:
        """Classes, image size and normalization of the run's data."""
        return self._read_json("dataset.json")

    def environment(self) -> dict[str, Any]:
        """The environments in which the run was started and resumed, and its `run_id`."""
        return self._read_json("environment.json")

    def initial(self) -> dict[str, Any]:
        """The initial weights that the run was given; empty if there were none."""
        return self._read_json("initial.json")

    def status(self) -> dict[str, Any]:
        """The last state and position that the run wrote; empty if there is none."""
        path = self.path / "status.json"
        return read_json_object(path) if path.exists() else {}

    def summary(self) -> dict[str, Any]:
        """The result; empty if the run is not finished."""
        return self._read_json("summary.json") if self.is_finished() else {}

    def predictions(self) -> dict[str, NDArray[Any]]:
        """`target`, `predicted` (-1 for an unreadable image) and `confidence` of the test images.

        Each array has one entry per image, in data set order. Empty if the run has none.
        """
        content = self._read(PREDICTIONS, MAX_BYTES)
        return parse_arrays(content, self.path / PREDICTIONS) if content is not None else {}

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl` before the first incomplete line.

        Args:
            kind: Only rows of this kind: "step", "epoch" or "test".
        """
        path = self.path / METRICS
        content = read_bytes(path, limit=MAX_METRICS) if path.exists() else b""
        rows = parse_rows(content.decode("utf-8", errors="replace"))
        return [row for row in rows if kind is None or row["kind"] == kind]

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace a JSON file atomically."""
        self.check_owner()
        write_json(self.path / name, values)

    def write_predictions(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write `predictions.npz` atomically."""
        import numpy as np

        self.check_owner()
        write_file(
            self.path / PREDICTIONS, lambda file: np.savez(file, allow_pickle=False, **arrays)
        )

    def split(self) -> bytes:
        """The compressed record of the run's split; empty if the run has none."""
        return self._read(SPLIT, _MAX_SPLIT_BYTES) or b""

    def write_split(self, content: bytes) -> None:
        """Write `split.json.gz` atomically."""
        self.check_owner()
        write_file(self.path / SPLIT, content)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to `metrics.jsonl`."""
        self.check_owner()
        append_text(self.path / METRICS, json.dumps(row, allow_nan=False) + "\n")

    def rewind_metrics(self, count: int, checkpoint: Checkpoint | None = None) -> int:
        """Keep only the first `count` rows, since a resumed run writes the later ones again.

        Args:
            count: Number of rows at the checkpoint.
            checkpoint: Checkpoint whose copy of the rows replaces lost ones.

        Returns:
            Number of rows kept; below `count` if rows were lost.
        """
        self.check_owner()
        rows = self.metrics()[:count]
        if len(rows) < count and checkpoint is not None:
            rows = max(rows, checkpoint.rows()[:count], key=len)
        write_file(self.path / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        return len(rows)

    def note_data_root(self, root: Path | None) -> None:
        """Save the present folder of the data in `config.yaml`."""
        saved = self.config()
        moved = _with_root(saved, root)
        if moved != saved:
            self._write_config(moved)

    def set_aside_metrics(self) -> None:
        """Rename `metrics.jsonl` before a run without an intact checkpoint starts again."""
        if (self.path / METRICS).exists():
            (self.path / METRICS).replace(self.path / f"damaged-{METRICS}")
            sync(self.path)

    def is_finished(self) -> bool:
        """True if the state in `status.json` is "finished"."""
        return self.status().get("state") == "finished"

    def has_manifest(self) -> bool:
        """True if the run wrote a manifest when it finished."""
        return "manifest" in self.status()

    def finish(self, summary: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the summary, sync all files of the run, then mark it as finished.

        Args:
            summary: The result.
            status: Other values for `status.json`.

        Raises:
            DamagedRunError: The description of the run was changed since its last checkpoint.
        """
        if held := self._descriptions():
            held.check_all(self.path, self.config())
        self.write("summary.json", summary)
        run_id = self.environment().get("run_id")
        self.write("status.json", {**status, "manifest": write_manifest(self.path, run_id)})

    def reopen(self) -> None:
        """Set a finished run's state to "running" before its files are repaired."""
        if self.is_finished():
            values = {k: v for k, v in self.status().items() if k != "manifest"}
            self.write("status.json", {**values, "state": "running"})

    def damage(self) -> dict[str, str]:
        """The faults of a finished run by file; empty for an unfinished one.

        Compares files with the manifest, if there is one, and the accuracy with the predictions.
        """
        if not self.is_finished():
            return {}
        try:
            manifest = self._manifest()
            found = manifest.faults() if manifest is not None else {}
        except DamagedRunError as error:
            return {MANIFEST: "; ".join(error.faults)}
        if not found.keys() & MENDABLE:
            fault = contradiction(self.summary(), self.predictions())
            found |= {"summary.json": fault} if fault else {}
        return found

    def is_mendable(self) -> bool:
        """True if a finished run is damaged and can be repaired from its last checkpoint."""
        damage = self.damage()
        return bool(damage) and damage.keys() <= MENDABLE and self.newest_intact()[0] is not None

    def _manifest(self) -> Manifest | None:
        """The manifest of a finished run; None if it has none or is not finished."""
        status = self.status()
        if status.get("state") != "finished" or "manifest" not in status:
            return None
        return Manifest.read(self.path, status["manifest"])

    def _hold(self, name: str, content: bytes | None) -> None:
        """Raise `DamagedRunError` if a file differs from the manifest or the newest checkpoint."""
        if (manifest := self._manifest()) is not None:
            manifest.check(name, content)
        elif name in DESCRIPTIONS and (held := self._descriptions()) is not None:
            held.check(self.path, name, content)

    def holds(self, name: str) -> bool:
        """True if the newest checkpoint of an unfinished run has the hash of a file."""
        return name in (held.sha256 if (held := self._descriptions()) else {})

    def _descriptions(self) -> Descriptions | None:
        """The description of an unfinished run in its newest checkpoint."""
        if self.is_finished() or not self.exists():
            return None
        found = (Descriptions.read(c.path, self._known_id()) for c in reversed(self.checkpoints()))
        return next((held for held in found if held is not None), None)

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints from oldest to newest; they may be damaged."""
        folder = self.path / "checkpoints"
        try:
            paths = [path for path in folder.iterdir() if path.name.startswith("step-")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise reading_error(folder, error) from None
        return sorted(Checkpoint(int(p.name[5:]), p) for p in paths if p.name[5:].isdigit())

    def newest_step(self) -> int:
        """Step of the newest checkpoint, damaged or not; 0 if there is none."""
        checkpoints = self.checkpoints()
        return checkpoints[-1].step if checkpoints else 0

    def newest_intact(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint whose hashes match, and the faults of newer ones.

        Hashes are cached until a file of the checkpoint changes.
        """
        faults: list[str] = []
        run_id, manifest = self._known_id(), self._manifest()
        for checkpoint in reversed(self.checkpoints()):
            fault = self._fault(checkpoint, run_id)
            if fault is None and manifest is not None:
                name = f"checkpoints/{checkpoint.path.name}/{MANIFEST}"
                fault = manifest.fault(name) if name in manifest.files else "it is of another run"
            if fault is None:
                return checkpoint, faults
            faults.append(f"{checkpoint.path.name}: {fault}")
        return None, faults

    def _known_id(self) -> str | None:
        """The run's id; None if `environment.json` cannot be read."""
        try:
            return self.environment().get("run_id")
        except ConfigError:
            return None

    def _fault(self, checkpoint: Checkpoint, run_id: str | None) -> str | None:
        """Return `checkpoint.fault(run_id)`, cached until a file of the checkpoint changes."""
        state = checkpoint.file_stats(), run_id
        known = self._checked.get(checkpoint.path)
        if known is None or known[0] != state:
            known = self._checked[checkpoint.path] = state, checkpoint.fault(run_id)
        return known[1]

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield a folder for the files of a checkpoint; publish it as `step-<step>` at the end."""
        self.check_owner()
        aside = self.path / "checkpoints" / f"{_ASIDE}{step:08d}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            yield aside
            copy_metrics(self.path, aside)
            self._described = self._described or describe(self.path)
            write_json(aside / RUN, self._described)
            hashes = {file.name: sha256_file(file) for file in sorted(aside.iterdir())}
            for name in hashes:
                sync(aside / name)
            manifest = {"step": step, "run_id": self._known_id(), "sha256": hashes}
            write_json(aside / MANIFEST, manifest)
            self.check_owner()
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        final = aside.with_name(f"step-{step:08d}")
        Checkpoint(step, final).discard()
        aside.rename(final)
        sync(final.parent)

    def rotate(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints."""
        self.check_owner()
        for checkpoint in self.checkpoints()[:-keep]:
            checkpoint.discard()

    def clear_leftovers(self, newest: int) -> None:
        """Delete unfinished folders of killed processes, and rename checkpoints after `newest`."""
        folder = self.path / "checkpoints"
        for checkpoint in self.checkpoints():
            if checkpoint.step > newest:
                damaged = folder / f"damaged-{checkpoint.path.name}"
                shutil.rmtree(damaged, ignore_errors=True)
                checkpoint.path.rename(damaged)
        for leftover in [*folder.glob(f"{_ASIDE}*"), *folder.glob(f"{TRASH}*")]:
            shutil.rmtree(leftover, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process.

        Some file systems do not share locks between machines, so a second process may still enter.
        The folder therefore stores the token of the last process that entered, and a process with
        another token stops writing.

        Raises:
            RunLockedError: Another process is training in this folder.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / _LOCK))
            except BlockingIOError:
                raise self._taken() from None
            remove_leftovers(self.path)
            self._token = uuid4().hex
            write_file(self.path / _OWNER, self._token)
            try:
                yield
            finally:
                self._token = ""

    def check_owner(self) -> None:
        """Check that this process may still write to the folder.

        Raises:
            TakenOver: Another process has taken the folder over.
        """
        if not self._token:
            return
        try:
            owner = (self.path / _OWNER).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return
        if owner != self._token:
            raise TakenOver(f"{str(self.path)!r}: another process has taken the run over")

    def check_writable(self, config: Config) -> None:
        """Check that a run could write to the folder, without changing it.

        Raises:
            ConfigError: Another process is training there.
            OSError: The folder cannot be made or written to, or its disk is full.
        """
        if (self.path / _LOCK).exists():
            with open_lock(self.path / _LOCK) as file:
                if not try_lock(file):
                    raise self._taken()
        check_writable(self.path, dump_config(config))

    def _taken(self) -> RunLockedError:
        return RunLockedError(f"{str(self.path)!r}: another process is training here")

    def _write_config(self, config: Config) -> None:
        write_file(self.path / "config.yaml", dump_config(config))

    def _read_json(self, name: str) -> dict[str, Any]:
        content = self._read(name)
        return parse_json_object(content, self.path / name) if content is not None else {}

    def _read(self, name: str, limit: int = RECORD_LIMITS.size) -> bytes | None:
        """Read a file and check its hash, if known; None if the file is missing."""
        path = self.path / name
        content = read_bytes(path, limit=limit) if path.exists() else None
        self._hold(name, content)
        return content


def find_runs(folder: str | Path) -> list[RunFolder]:
    """All run folders at or below `folder`, sorted by path; also those without `config.yaml`."""
    return [RunFolder(path) for path in run_paths(Path(folder))]


def _with_root(config: Config, root: Path | None) -> Config:
    """The configuration with `data.root` as an absolute path."""
    return with_values(config, {"data.root": root and str(root.absolute())})
