"""`saccade evaluate`: what a run's model gets right, and how sure it is of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.cli.opened_run import open_run

app = typer.Typer(rich_markup_mode=None, add_completion=False)

WIDEST_CONFUSION = 20


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Annotated[str, typer.Option(help="train, val or test")] = "test",
    weights: Annotated[
        str | None, typer.Option(help="best or last; the run's choice if absent")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once.")] = 512,
    data_root: Annotated[
        Path | None, typer.Option(help="Where the run's data lies now, if elsewhere.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a run's model: top-1 and top-5, per class, confusion, calibration, throughput."""
    folder = open_run(run)
    from saccade.train.inspection import evaluate_run

    data = folder.config().data
    result = evaluate_run(
        folder,
        split=split,
        weights=weights,
        device=device,
        batch_size=batch_size,
        data=data.model_copy(update={"root": data_root}) if data_root else None,
    )
    typer.echo(json.dumps(result) if as_json else _table(result))


def _table(result: dict[str, Any]) -> str:
    scalars = {k: v for k, v in result.items() if not isinstance(v, list | dict)}
    lines = [f"{name.replace('_', ' '):<22}{_short(value)}" for name, value in scalars.items()]
    lines += ["", "accuracy by class"]
    lines += [f"  {name:<20}{_short(value)}" for name, value in result["class_accuracy"].items()]
    if len(result["confusion"]) <= WIDEST_CONFUSION:
        width = max(len(str(n)) for row in result["confusion"] for n in row) + 1
        lines += ["", "confusion (a row for each true class)"]
        lines += ["  " + "".join(f"{n:>{width}}" for n in row) for row in result["confusion"]]
    return "\n".join(lines)


def _short(value: Any) -> str:
    return str(round(value, 4) if isinstance(value, float) else value)
