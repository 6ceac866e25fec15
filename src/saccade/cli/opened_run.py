"""The run that a command is to use, with a word about it where its weights are not the last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from saccade.runs import RunFolder

__all__ = ["open_run"]


def open_run(path: Path) -> RunFolder:
    """Open a run folder; say on stderr which weights an unfinished or damaged one has."""
    from saccade.runs import RunFolder

    run = RunFolder.open(path)
    newest, faults = run.newest_intact()
    if newest is None:
        return run  # there are no weights, and whoever wants them says so
    for fault in faults:
        typer.echo(f"saccade: passed over a damaged checkpoint: {fault}", err=True)
    if not run.summary():
        _say_unfinished(run, newest.step)
    elif faults:
        typer.echo(f"saccade: its checkpoint of step {newest.step} is used", err=True)
    return run


def _say_unfinished(run: RunFolder, step: int) -> None:
    status, epochs = run.status(), run.config().train.epochs
    state, done = status.get("state", "without a status.json"), status.get("epoch", 0)
    state = "running, or killed" if state == "running" else state
    typer.echo(
        f"saccade: {str(run.path)!r} is not finished ({state}; {done} of {epochs} epochs done): "
        f"its checkpoint of step {step} is used",
        err=True,
    )
