"""Result files: `<theme>_<hardware>_<yyyymm>` with the endings of what is in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from saccade.bench.plots import draw
from saccade.bench.results import AttentionResult
from saccade.bench.tables import as_markdown
from saccade.bench.targets import Verdict
from saccade.errors import ConfigError

__all__ = ["check_folder", "result_stem", "write_attention"]


def check_folder(folder: Path) -> None:
    """Make the folder and see that it can be written to, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror or error}; give another") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {folder}: the folder cannot be written to; give another")


def result_stem(theme: str, hardware: str) -> str:
    """The name of result files without their ending."""
    return f"{theme}_{hardware}_{datetime.now(UTC):%Y%m}"


def write_attention(
    result: AttentionResult, verdicts: Sequence[Verdict], folder: Path, hardware: str
) -> list[Path]:
    """Write JSON, Markdown and plots; an interrupted result gets a name of its own."""
    stem = result_stem("attention", hardware)
    path = folder / (stem if result.complete else f"{stem}_partial")
    figures = draw(result, path)
    written = [path.with_suffix(".json"), path.with_suffix(".md"), *figures]
    written[0].write_text(result.to_json())
    picture = figures[0].name if figures else None
    written[1].write_text(as_markdown(result, verdicts, picture))
    return written
