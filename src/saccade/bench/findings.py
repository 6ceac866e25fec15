"""Base class of the results of analyses, progress reports, and result files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from saccade.bench.output import result_stem
from saccade.bench.tables import Table, markdown_table, provenance
from saccade.io import write_file

__all__ = ["Findings", "Report", "write_findings"]

VERSION = 1

Report = Callable[[str, float], None]
"""Called with a message on the last step and the fraction of the work done, 0 to 1."""


@dataclass
class Findings:
    """The result of an analysis, complete or interrupted.

    Attributes:
        environment: Hardware, versions, command line, git revision.
        complete: False if the analysis was interrupted.
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
        """Write `stem`.png and `stem`.svg; write nothing if there is nothing to draw."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Measurements and conclusions as a JSON document."""
        document = {"format": f"saccade.analyze.{self.theme}", "version": VERSION, **asdict(self)}
        return json.dumps(document | self.conclusions(), indent=1) + "\n"


def write_findings(findings: Findings, folder: Path, hardware: str) -> list[Path]:
    """Write JSON, Markdown and figures; files of an incomplete result are named `_partial`."""
    stem = result_stem(folder, findings.theme, hardware, complete=findings.complete)
    figures = findings.draw(stem)
    written = [stem.with_suffix(".json"), stem.with_suffix(".md"), *figures]
    write_file(written[0], findings.to_json())
    write_file(written[1], _markdown(findings, figures[0].name if figures else None))
    return written


def _markdown(findings: Findings, figure: str | None) -> str:
    facts = findings.environment
    parts = [f"# {findings.title} on {facts['device_name']}\n", f"{provenance(facts)}\n"]
    if not findings.complete:
        parts.append("**Interrupted: later measurements are missing.**\n")
    parts.append(f"{findings.preface}\n")
    if figure is not None:
        parts.append(f"![{findings.title}]({figure})\n")
    for table in findings.tables():
        parts += [f"## {table.title}\n", markdown_table(table.columns, table.lines)]
    return "\n".join(parts)
