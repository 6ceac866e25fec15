"""`saccade predict`: classify images from files, folders or stdin."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import Device, JsonLines, Pretrained, Weights
from saccade.cli.sources import (
    check_onnx_use,
    exit_if_any,
    find_each,
    is_onnx,
    open_run_or_model,
    require_images,
    split_words,
)
from saccade.cli.terminal import escape, say
from saccade.errors import DataError

if TYPE_CHECKING:
    from saccade.runs import RunFolder

Classify = Callable[[str], list[tuple[str, float]]]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] IMAGES...",
            help="RUN is a run folder, a folder of save_pretrained, or an exported .onnx file; "
            "without it a pretrained model is used. IMAGES are files, folders, or - for one image "
            "from stdin.",
        ),
    ],
    pretrained: Pretrained = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show for each image.")] = 3,
    weights: Weights = None,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Classify images, or files of sequences. URLs are refused. ONNX files need no torch.

    A prediction below the model's calibrated confidence is marked as unsure; pretrained models have
    such a threshold. Missing or unreadable images are reported on stderr after the others are
    classified, and the exit code is 3.
    """
    run, images, _ = split_words(words, pretrained)
    require_images(images)
    folder = None if is_onnx(run) else open_run_or_model(run)
    names, faults = find_each(_finder(folder), images)
    if not names:
        exit_if_any(faults)
    if folder is None:
        check_onnx_use(weights)
        classify, unsure_below = _onnx_classifier(run, device), None
    else:
        classify, unsure_below = _classifier(folder, weights, device)
    for name in names:
        try:
            ranked = classify(name)[:top]
        except DataError as fault:
            faults.append(fault)
            continue
        if as_json:
            classes = [{"class": label, "probability": p} for label, p in ranked]
            typer.echo(
                json.dumps({"image": name, "classes": classes, **unsure(ranked, unsure_below)})
            )
        else:
            line = "  ".join(f"{escape(label)} {p:.3f}" for label, p in ranked)
            mark = "unsure: " if unsure(ranked, unsure_below).get("unsure") else ""
            say(f"{escape(name)}  {mark}{line}")
    exit_if_any(faults)


def unsure(ranked: list[tuple[str, float]], below: float | None) -> dict[str, bool]:
    """Whether a prediction is unsure, for JSON; empty if the model has no threshold."""
    return {} if below is None else {"unsure": ranked[0][1] < below}


def _finder(folder: RunFolder | Path | None) -> Callable[[list[str]], list[str]]:
    """The function that expands the words of the command line to files of the run's kind."""
    from saccade.data.folder_files import find_pictures
    from saccade.runs import RunFolder

    if isinstance(folder, RunFolder):
        kind = folder.dataset().get("kind")
    else:
        kind = _saved_kind(folder) if folder is not None else None
    if kind not in ("bytes", "symbols"):
        return find_pictures
    from saccade.data.text_folder import TEXT_SUFFIXES  # needs torch, which ONNX files do not

    find = partial(find_pictures, suffixes=TEXT_SUFFIXES, what="text files")

    def find_texts(words: list[str]) -> list[str]:
        if "-" in words:
            raise DataError("IMAGES must be text files or folders for this model, got '-'")
        return find(words)

    return find_texts


def _saved_kind(folder: Path) -> object:
    """What the inputs of a saved model are; None if it has no record of its training."""
    from saccade.models.hub import CONFIG_FILE, read_config, training_record

    trained = training_record(read_config(folder), folder / CONFIG_FILE)
    return None if trained is None else trained["data"].get("kind")


def _classifier(
    folder: RunFolder | Path, weights: str | None, device: str
) -> tuple[Classify, float | None]:
    from saccade.train.image_inputs import open_picture
    from saccade.train.inference import Predictor

    predictor = Predictor(folder, weights=weights, device=device)
    if predictor.info.is_sequence:
        return predictor.classes, predictor.unsure_below

    def classify(name: str) -> list[tuple[str, float]]:
        return predictor.classes(open_picture(name, predictor.info))

    return classify, predictor.unsure_below


def _onnx_classifier(path: Path, device: str) -> Classify:
    from saccade.export.inference import classify_file
    from saccade.export.reading import open_classifier

    model = open_classifier(path, device=device)
    return lambda name: classify_file(model, name)
