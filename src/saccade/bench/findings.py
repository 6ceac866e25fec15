"""The results of analyses, and the files of all results: JSON, Markdown and figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from saccade.bench.model import ModelResult
from saccade.bench.plots import draw
from saccade.bench.presets import Verdict
from saccade.bench.results import AttentionResult
from saccade.bench.tables import Table, as_markdown, markdown_table, provenance
from saccade.errors import ConfigError
from saccade.io import write_file

__all__ = [
    "Findings",
    "Report",
    "check_folder",
    "result_stem",
    "write_attention",
    "write_findings",
    "write_model",
]

VERSION = 1

Report = Callable[[str, float], None]
"""Called with a message on the last step and the fraction of the work done, 0 to 1."""


@dataclass
class Findings:
    """The result of an analysis, complete or interrupted.

    Attributes:
        environment: Hardware, versions, command line, git revision.
    """

    theme: ClassVar[str]
    title: ClassVar[str]
    preface: ClassVar[str]

    environment: Mapping[str, Any]
    complete: bool = field(default=False, kw_only=True)

    def conclusions(self) -> dict[str, Any]:
        """The conclusions from the measurements, as JSON values."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """The findings as tables."""
        raise NotImplementedError

    def draw(self, stem: Path) -> list[Path]:
        """Write `stem`.png and `stem`.svg; nothing if there is nothing to draw."""
        del stem
        return []

    def to_json(self) -> str:
        """Measurements and conclusions as a JSON document."""
        document = {"format": f"saccade.analyze.{self.theme}", "version": VERSION, **asdict(self)}
        return json.dumps(document | self.conclusions(), indent=1) + "\n"


def write_findings(findings: Findings, folder: Path, hardware: str) -> list[Path]:
    """Write JSON, Markdown and figures."""
    stem = result_stem(folder, findings.theme, hardware, complete=findings.complete)
    figures = findings.draw(stem)
    return _write(stem, findings.to_json(), _markdown(findings, figures), figures)


def write_attention(
    result: AttentionResult,
    verdicts: Sequence[Verdict],
    folder: Path,
    hardware: str,
    theme: str = "attention",
) -> list[Path]:
    """Write JSON, Markdown and plots."""
    stem = result_stem(folder, theme, hardware, complete=result.complete)
    figures = draw(result, stem)
    page = as_markdown(result, verdicts, figures[0].name if figures else None)
    return _write(stem, result.to_json(), page, figures)


def write_model(
    result: ModelResult, targets: Table | None, folder: Path, hardware: str
) -> list[Path]:
    """Write JSON and Markdown."""
    stem = result_stem(folder, "model", hardware, complete=result.complete)
    return _write(stem, result.to_json(), result.as_markdown(targets))


def check_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror or error}; give another") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {folder}: the folder cannot be written to; give another")


def result_stem(folder: Path, theme: str, hardware: str, *, complete: bool) -> Path:
    """`<theme>_<hardware>_<yyyymm>` in the folder; an incomplete result is named `_partial`."""
    partial = "" if complete else "_partial"
    return folder / f"{theme}_{hardware}_{datetime.now(UTC):%Y%m}{partial}"


def _write(stem: Path, json_text: str, page: str, figures: Sequence[Path] = ()) -> list[Path]:
    written = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    for path, text in zip(written, (json_text, page), strict=True):
        write_file(path, text)
    return [*written, *figures]


def _markdown(findings: Findings, figures: Sequence[Path]) -> str:
    facts = findings.environment
    parts = [f"# {findings.title} on {facts['device_name']}\n", f"{provenance(facts)}\n"]
    if not findings.complete:
        parts.append("**Interrupted: later measurements are missing.**\n")
    parts.append(f"{findings.preface}\n")
    if figures:
        parts.append(f"![{findings.title}]({figures[0].name})\n")
    for table in findings.tables():
        parts += [f"## {table.title}\n", markdown_table(table.columns, table.lines)]
    return "\n".join(parts)
