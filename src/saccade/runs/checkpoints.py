"""Checkpoints of a run, and the rows of `metrics.jsonl` that belong to them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from saccade.errors import ConfigError, reading_error, shorten
from saccade.io import RECORD_LIMITS, Limits, open_regular, parse_json, read_text, sha256_file, sync

MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
TRASH = ".trash-"  # the start of the name of a checkpoint that is being deleted
MAX_COPIED = 16 << 20
"""Largest `metrics.jsonl` in bytes that is copied into a checkpoint."""
ROW = Limits(size=1 << 20, depth=8, items=10_000)
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, order=True)
class Checkpoint:
    """One folder under `checkpoints/`."""

    step: int
    path: Path

    def fault(self, run_id: str | None = None) -> str | None:
        """Describe why the checkpoint cannot be used; None if every file matches the manifest.

        Args:
            run_id: Id of the run that it must belong to, if known.

        Raises:
            ConfigError: A file exists but cannot be read; it may still be intact.
        """
        try:
            with open_regular(self.path / MANIFEST) as file:
                manifest = parse_json(file.read(RECORD_LIMITS.size).decode(), MANIFEST)
            if manifest["step"] != self.step:
                return f"it is of step {shorten(str(manifest['step']), 20)}"
            if None not in {run_id, manifest.get("run_id")} and manifest["run_id"] != run_id:
                return "it is of another run"
            for name, expected in manifest["sha256"].items():
                if sha256_file(self.path / name) != expected:
                    return f"{name} is not what was written"
            return None if manifest["sha256"] else f"{MANIFEST} names no file"
        except (*_GONE, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        except OSError as error:
            raise reading_error(self.path, error) from None

    def file_stats(self) -> tuple[tuple[str, int, int, int], ...]:
        """Name, inode, size and modification time of every file; empty if the folder is gone."""
        try:
            stats = [(file.name, file.stat()) for file in sorted(self.path.iterdir())]
        except _GONE:
            return ()
        except OSError as error:
            raise reading_error(self.path, error) from None
        return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)

    def rows(self) -> list[dict[str, Any]]:
        """Its copy of the rows of `metrics.jsonl`; empty if it has none."""
        path = self.path / METRICS
        return parse_rows(read_text(path, limit=MAX_COPIED)) if path.exists() else []

    def weights(self, which: Literal["best", "last"]) -> Path:
        """The safetensors file of the model; averaged weights are preferred."""
        names = ["best", "average", "model"] if which == "best" else ["average", "model"]
        files = [self.path / f"{name}.safetensors" for name in names]
        return next((file for file in files if file.exists()), files[-1])

    def discard(self) -> None:
        """Delete the checkpoint. It is renamed first, so a kill leaves no partial checkpoint."""
        if self.path.exists():
            trash = self.path.with_name(f"{TRASH}{self.path.name}")
            shutil.rmtree(trash, ignore_errors=True)
            self.path.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)


def parse_rows(text: str) -> list[dict[str, Any]]:
    """Parse the rows of a `metrics.jsonl` before the first invalid one."""
    rows = []
    for line in text.split("\n"):
        try:
            row = parse_json(line, METRICS, limits=ROW)
        except ConfigError:
            break
        if not isinstance(row, dict) or "kind" not in row:
            break
        rows.append(row)
    return rows


def copy_metrics(run: Path, checkpoint: Path) -> None:
    """Sync the `metrics.jsonl` of a run and copy it into the folder of a checkpoint."""
    path = run / METRICS
    if path.exists():
        sync(path)
        sync(run)
        if path.stat().st_size <= MAX_COPIED:
            shutil.copyfile(path, checkpoint / METRICS)
