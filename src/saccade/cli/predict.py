"""`saccade predict`: classify images from files, folders or stdin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.images import exit_if_any, find_each
from saccade.cli.runs import open_run_or_model
from saccade.cli.streams import escape, say
from saccade.errors import DataError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder of save_pretrained.")],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, or - for one image from stdin.")
    ],
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show for each image.")] = 3,
    weights: Annotated[
        str | None, typer.Option(help="best or last; default: as the run was configured")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Classify images with a trained model. URLs are refused.

    Missing or unreadable images are reported on stderr after the others are classified, and the
    exit code is 3.
    """
    folder = open_run_or_model(run)
    from saccade.train.image_inputs import find_pictures, open_picture
    from saccade.train.inference import Predictor

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
            line = "  ".join(f"{escape(label)} {p:.3f}" for label, p in ranked)
            say(f"{escape(name)}  {line}")
    exit_if_any(faults)
