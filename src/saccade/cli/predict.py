"""`saccade predict`: classes of images, from files, folders or stdin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.images import exit_if_any, find_each
from saccade.cli.opened_run import open_run
from saccade.errors import DataError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, or - for one image from stdin.")
    ],
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 3,
    weights: Annotated[
        str | None, typer.Option(help="best or last; the run's choice if absent")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Classify images with a run's model. URLs are refused: nothing is fetched.

    An image that is missing or cannot be read is named on stderr at the end, the others are
    classified, the exit code is 3.
    """
    folder = open_run(run)
    from saccade.data.images import printable
    from saccade.train.inspection import Predictor
    from saccade.train.pictures import find_pictures, open_picture

    names, faults = find_each(find_pictures, images)
    if not names:
        exit_if_any(faults)
    predictor = Predictor(folder, weights=weights, device=device)
    for name in names:
        try:
            picture = open_picture(name, predictor.info)
        except DataError as fault:
            faults.append(fault)
            continue
        ranked = predictor.classes(picture)[:top]
        if as_json:
            classes = [{"class": label, "probability": p} for label, p in ranked]
            typer.echo(json.dumps({"image": name, "classes": classes}))
        else:
            typer.echo(
                f"{printable(name)}  " + "  ".join(f"{label} {p:.3f}" for label, p in ranked)
            )
    exit_if_any(faults)
