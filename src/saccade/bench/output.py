"""Write result files named `<theme>_<hardware>_<yyyymm>.<suffix>`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from saccade.bench.model import ModelResult
from saccade.bench.plots import draw
from saccade.bench.presets import Verdict
from saccade.bench.results import AttentionResult
from saccade.bench.tables import Table, as_markdown
from saccade.errors import ConfigError
from saccade.io import write_file

__all__ = ["check_folder", "result_stem", "write_attention", "write_model"]


def check_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror or error}; give another") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {folder}: the folder cannot be written to; give another")


def result_stem(folder: Path, theme: str, hardware: str, *, complete: bool) -> Path:
    """The path of result files without suffix; an incomplete result is named `_partial`."""
    partial = "" if complete else "_partial"
    return folder / f"{theme}_{hardware}_{datetime.now(UTC):%Y%m}{partial}"


def write_attention(
    result: AttentionResult,
    verdicts: Sequence[Verdict],
    folder: Path,
    hardware: str,
    theme: str = "attention",
) -> list[Path]:
    """Write JSON, Markdown and plots."""
    path = result_stem(folder, theme, hardware, complete=result.complete)
    figures = draw(result, path)
    written = [path.with_suffix(".json"), path.with_suffix(".md"), *figures]
    write_file(written[0], result.to_json())
    picture = figures[0].name if figures else None
    write_file(written[1], as_markdown(result, verdicts, picture))
    return written


def write_model(
    result: ModelResult, targets: Table | None, folder: Path, hardware: str
) -> list[Path]:
    """Write JSON and Markdown."""
    path = result_stem(folder, "model", hardware, complete=result.complete)
    written = [path.with_suffix(".json"), path.with_suffix(".md")]
    write_file(written[0], result.to_json())
    write_file(written[1], result.as_markdown(targets))
    return written
