"""`saccade report`: write a page, tables and figures about a folder of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import AsJson

if TYPE_CHECKING:
    from saccade.report import Report

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A comparison, a study, a run, or a folder of runs."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; default: DIR/report.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Formats to write, separated by commas.")
    ] = "html,md,csv,latex",
    as_json: AsJson = False,
) -> None:
    """Write a report about finished runs: tables with intervals, figures and conclusions."""
    from saccade.report import write_report

    chosen = [name.strip() for name in formats.split(",") if name.strip()]
    done = write_report(folder, out, formats=chosen)
    if done.left_out:
        first = done.left_out[0]
        more = f" (and {len(done.left_out) - 1} more)" if len(done.left_out) > 1 else ""
        typer.echo(f"saccade: left out {first.what}: {first.reason}{more}", err=True)
    if done.unchecked:
        warning = f"{done.unchecked} of the runs have no manifest: their files cannot be checked"
        typer.echo(f"saccade: {warning}", err=True)
    typer.echo(json.dumps(_as_json(done)) if as_json else f"{done.headline}\n{_page(done)}")


def _page(done: Report) -> Path:
    """The main file of the report: report.html if there is one, else another page or table."""
    pages = [file for file in done.files if file.suffix in {".html", ".md", ".tex", ".csv"}]
    return next((file for file in pages if file.name == "report.html"), pages[0])


def _as_json(done: Report) -> dict[str, Any]:
    return {
        "headline": done.headline,
        "datasets": done.findings.datasets,
        "images": done.findings.images,
        "images_skipped": done.findings.skipped,
        "out": str(done.out),
        "page": str(_page(done)),
        "files": [str(file) for file in done.files],
        "left_out": [{"run": gap.what, "reason": gap.reason} for gap in done.left_out],
        "rows": [
            {
                "attention": row.label,
                "runs": row.runs,
                "accuracy": row.accuracy,
                "accuracy_low": row.accuracy_low,
                "accuracy_high": row.accuracy_high,
            }
            for row in done.findings.rows
        ],
    }
