"""`saccade evaluate`: accuracy, confusion and calibration of a run's model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from saccade.cli.options import AsJson, Device, Pretrained, Weights
from saccade.cli.sources import (
    check_onnx_use,
    choose_pretrained,
    is_onnx,
    open_run_or_model,
)
from saccade.cli.terminal import cells, escape, fit, in_words, padded, percent, say, terminal_width
from saccade.errors import ConfigError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

MAX_CONFUSION_CLASSES = 20
MIN_LETTERS = 4
"""If class names have less room than this, the confusion matrix shows class numbers only."""


@app.command()
def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, a folder of save_pretrained, or an exported .onnx file."
        ),
    ] = None,
    pretrained: Pretrained = None,
    split: Annotated[str, typer.Option(help="train, val or test")] = "test",
    weights: Weights = None,
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 512,
    data: Annotated[
        str | None,
        typer.Option(help="Another data set with the same classes: a name, or `folder`."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data, if it has moved.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model.

    Reports top-1 and top-5 accuracy, accuracy by class, confusion, calibration and throughput.
    ONNX files are measured without torch, on their test images.
    """
    if run is None and pretrained is None:
        raise ConfigError(
            "RUN is needed: a run folder, a folder of save_pretrained, or an exported .onnx file, "
            "or --pretrained NAME (see `saccade evaluate --help`)"
        )
    if run is not None and pretrained is not None:
        raise ConfigError(f"RUN must be unset with --pretrained={pretrained}, got {str(run)!r}")
    run = run or choose_pretrained(pretrained)
    if is_onnx(run):
        result = _evaluate_onnx(run, split, weights, device, batch_size, data, data_root)
    else:
        folder = open_run_or_model(run)
        from saccade.train.inference import data_to_evaluate, evaluate_run

        result = evaluate_run(
            folder,
            split=split,
            weights=weights,
            device=device,
            batch_size=batch_size,
            data=data_to_evaluate(folder, name=data, root=data_root),
        )
    say(json.dumps(result) if as_json else _table(result))


def _evaluate_onnx(
    path: Path,
    split: str,
    weights: str | None,
    device: str,
    batch_size: int,
    data: str | None,
    data_root: Path | None,
) -> dict[str, Any]:
    """Evaluate an ONNX file, without torch."""
    check_onnx_use(weights)
    if split != "test":
        raise ConfigError(f"split must be 'test' for an ONNX file, got {split!r}")
    from saccade.export.inference import evaluate_onnx

    return evaluate_onnx(path, data=data, data_root=data_root, device=device, batch_size=batch_size)


def _table(result: dict[str, Any]) -> str:
    noun = result.get("input", "image")
    scalars = {k: v for k, v in result.items() if not isinstance(v, list | dict) and k != "input"}
    lines = [f"{in_words(name, noun):<22}{_short(value)}" for name, value in scalars.items()]
    lines += ["", "accuracy by class", *_class_lines(result)]
    if len(result["confusion"]) <= MAX_CONFUSION_CLASSES:
        lines += ["", "confusion (a row for each true class, a column for each predicted one)"]
        lines += _confusion_lines(result)
    return "\n".join(lines)


def _class_lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield number, name, accuracy and image count of each class; names are never shortened."""
    names = _names(result)
    shares = [percent(share) for share in result["class_accuracy"].values()]
    images = [sum(row) for row in result["confusion"]]
    digits, wide, width = len(str(len(names) - 1)), max(map(cells, names)), terminal_width()
    most = len(f"{max(images):,}")
    for number, (name, share, count) in enumerate(zip(names, shares, images, strict=True)):
        numbers = f"{share:>8} of {count:>{most},}"
        line = f"  {number:>{digits}}  {padded(name, wide)}  "
        if width is None or cells(line + numbers) <= width:
            yield line + numbers
        else:
            yield f"  {number:>{digits}}  {name}"
            yield f"{' ' * (digits + 4)}{numbers}"


def _confusion_lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the confusion matrix with class numbers, and class names if there is room."""
    counts = result["confusion"]
    digits = len(str(len(counts) - 1))
    wide = max(digits, *(len(str(n)) for row in counts for n in row)) + 1
    columns = "".join(f"{number:>{wide}}" for number in range(len(counts)))
    names, width = _names(result), terminal_width()
    needed = digits + 2 + len(columns)
    if width is not None and needed > width:
        yield f"  needs {needed} columns, this terminal has {width}; --json has the counts"
        return
    longest = max(map(cells, names))
    room = longest if width is None else min(longest, width - 4 - digits - len(columns))
    room = room if room >= MIN_LETTERS else 0
    gap = room + 2 if room else 0
    yield f"  {' ' * (digits + gap)}{columns}"
    for number, (name, row) in enumerate(zip(names, counts, strict=True)):
        shown = f"  {padded(fit(name, room), room)}" if room else ""
        yield f"  {number:>{digits}}{shown}" + "".join(f"{n:>{wide}}" for n in row)


def _names(result: dict[str, Any]) -> list[str]:
    """Class names with control characters escaped."""
    return [escape(name) for name in result["class_names"]]


def _short(value: Any) -> str:
    return escape(str(round(value, 4) if isinstance(value, float) else value))
