"""`saccade predict`: classify images from files, folders or stdin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.images import exit_if_any, find_each
from saccade.cli.runs import check_onnx_use, is_onnx, open_run_or_model
from saccade.cli.streams import escape, say
from saccade.errors import DataError

if TYPE_CHECKING:
    from saccade.runs import RunFolder

Classify = Callable[[str], list[tuple[str, float]]]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder, a folder of save_pretrained, or an exported .onnx file."
        ),
    ],
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
    """Classify images with a trained model. URLs are refused. ONNX files need no torch.

    Missing or unreadable images are reported on stderr after the others are classified, and the
    exit code is 3.
    """
    from saccade.data.pictures import find_pictures

    folder = None if is_onnx(run) else open_run_or_model(run)
    names, faults = find_each(find_pictures, images)
    if not names:
        exit_if_any(faults)
    if folder is None:
        check_onnx_use(weights)
        classify = _onnx_classifier(run, device)
    else:
        classify = _classifier(folder, weights, device)
    for name in names:
        try:
            ranked = classify(name)[:top]
        except DataError as fault:
            faults.append(fault)
            continue
        if as_json:
            classes = [{"class": label, "probability": p} for label, p in ranked]
            typer.echo(json.dumps({"image": name, "classes": classes}))
        else:
            line = "  ".join(f"{escape(label)} {p:.3f}" for label, p in ranked)
            say(f"{escape(name)}  {line}")
    exit_if_any(faults)


def _classifier(folder: RunFolder | Path, weights: str | None, device: str) -> Classify:
    from saccade.train.image_inputs import open_picture
    from saccade.train.inference import Predictor

    predictor = Predictor(folder, weights=weights, device=device)
    return lambda name: predictor.classes(open_picture(name, predictor.info))


def _onnx_classifier(path: Path, device: str) -> Classify:
    from saccade.export.inference import classify_file
    from saccade.export.reading import open_classifier

    model = open_classifier(path, device=device)
    return lambda name: classify_file(model, name)
