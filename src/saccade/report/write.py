"""Write a report: read a folder of runs, compose the page, write its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from saccade.errors import ConfigError, writing_error
from saccade.io import make_folder, remove_leftovers, write_file
from saccade.report.collect import LeftOut, collect
from saccade.report.findings import Findings, find
from saccade.report.page import Page
from saccade.report.render import as_csv, as_html, as_latex, as_markdown, latex_table
from saccade.report.sections import compose

__all__ = ["FORMATS", "Report", "render_report", "write_report"]

FORMATS = ("html", "md", "csv", "latex")


@dataclass(frozen=True)
class Report:
    """The files of a report and its content.

    Attributes:
        unchecked: Number of runs without a manifest, whose files cannot be verified.
    """

    out: Path
    files: list[Path]
    headline: str
    findings: Findings
    left_out: list[LeftOut]
    unchecked: int = 0


def write_report(
    folder: str | Path, out: str | Path | None = None, *, formats: Sequence[str] = FORMATS
) -> Report:
    """Write a report about all runs at or below a folder.

    The same runs give the same bytes. `html` alone writes one self-contained file. With any other
    format the figures are also written, as PNG and SVG.

    Args:
        folder: Folder of a comparison, a search or a run, or any folder with runs below it.
        out: Output folder; default `report` in the folder.
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
        make_folder(out)
        for folder_of_files in (out, out / "figures", out / "tables"):
            remove_leftovers(folder_of_files)
    found = find(evidence)
    page = replace(compose(evidence, found), has_figure_files=set(formats) != {"html"})
    contents = list(_contents(page, formats))
    with _writing_to(out):
        contents.sort(key=lambda content: content[0] == "report.html")  # it shows the others
        files = [_write(out / name, content) for name, content in contents]
    return Report(out, files, page.headline, found, evidence.left_out, evidence.unchecked)


def render_report(folder: str | Path) -> str:
    """The page of `write_report` as text; no file is written."""
    evidence = collect(Path(folder))
    return as_html(replace(compose(evidence, find(evidence)), has_figure_files=False))


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
    """Yield the relative path and content of each file of the report."""
    for figure in page.figures if page.has_figure_files else ():
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
    make_folder(path.parent)
    write_file(path, content)
    return path
