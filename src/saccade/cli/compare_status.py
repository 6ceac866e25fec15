"""`saccade compare status`: the state of each run of a comparison."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from saccade.cli.options import AsJson

POLL_S = 5.0

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback()
def _compare() -> None:
    """Train several attentions under the same settings and compare them."""


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the comparison.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Show changes until no run is queued or running.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which runs are queued, running, done or failed, and why."""
    from saccade.study.comparison.folder import ComparisonFolder
    from saccade.study.comparison.status import describe_runs
    from saccade.study.comparison.status_view import StatusView

    comparison, console = ComparisonFolder.open(folder), Console()
    runs = describe_runs(comparison)
    if watch:
        view = StatusView(runs, fits_screen=True)
        with Live(view, console=console, auto_refresh=False, transient=True) as live:
            while any(run.state in ("queued", "running") for run in runs):
                time.sleep(POLL_S)
                runs = describe_runs(comparison)
                live.update(StatusView(runs, fits_screen=True), refresh=True)
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in runs]))
    else:
        console.print(StatusView(runs), soft_wrap=True)
