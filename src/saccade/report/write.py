"""From a folder of runs to the files of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from saccade.errors import ConfigError, writing_error
from saccade.report.collect import LeftOut, collect
from saccade.report.findings import Findings, find
from saccade.report.html import as_html
from saccade.report.latex import as_latex, latex_table
from saccade.report.markdown import as_markdown
from saccade.report.page import Page
from saccade.report.sections import compose
from saccade.report.spreadsheet import as_csv

__all__ = ["FORMATS", "Report", "write_report"]

FORMATS = ("html", "md", "csv", "latex")


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    out: Path
    files: list[Path]
    headline: str
    findings: Findings
    left_out: list[LeftOut]


def write_report(
    folder: str | Path, out: str | Path | None = None, *, formats: Sequence[str] = FORMATS
) -> Report:
    """Read the run folders at or below a folder and write a report about them.

    The same runs give the same bytes. Figures are written as PNG and SVG with every format.

    Args:
        folder: A comparison, a study, a run, or any folder with runs below it.
        out: Where to write; `report` in the folder where it is left out.
        formats: Which of `FORMATS` to write.

    Raises:
        ConfigError: The folder holds no finished run, a format is unknown, or `out` cannot be
            written.
    """
    _check_formats(formats)
    folder = Path(folder)
    out = folder / "report" if out is None else Path(out)
    evidence = collect(folder)
    with _writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
    found = find(evidence)
    page = compose(evidence, found)
    contents = list(_contents(page, formats))
    with _writing_to(out):
        files = [_write(out / name, content) for name, content in contents]
    return Report(out, files, page.headline, found, evidence.left_out)


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        told = f"--out {str(out)!r}: cannot write{where}"
        raise writing_error(told, error, ConfigError) from None


def _check_formats(formats: Sequence[str]) -> None:
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        got = ",".join(unknown or formats)
        raise ConfigError(
            f"--format {got!r}: accepted are {', '.join(FORMATS)}, with commas between"
        )


def _contents(page: Page, formats: Sequence[str]) -> Iterator[tuple[str, str | bytes]]:
    """The files of a report, by their path in its folder."""
    for figure in page.figures:
        yield f"figures/{figure.name}.png", figure.drawing.png
        yield f"figures/{figure.name}.svg", figure.drawing.svg
    if "html" in formats:
        yield "report.html", as_html(page)
    if "md" in formats:
        yield "report.md", as_markdown(page)
    if "csv" in formats:
        yield from ((f"tables/{table.name}.csv", as_csv(table)) for table in page.tables)
    if "latex" in formats:
        yield "report.tex", as_latex(page)
        yield from (
            (f"tables/{table.name}.tex", latex_table(table) + "\n") for table in page.tables
        )


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
