"""`saccade convert`: give a trained softmax ViT another attention and recover its accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import AsJson, Device, Quiet
from saccade.cli.terminal import percent, say
from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.convert import Inspection

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A run folder, a folder of save_pretrained (saccade, timm or transformers), or "
            "timm:NAME with --weights."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Overrides such as optim.lr=5e-4."),
    ] = None,
    attention: Annotated[str, typer.Option(help="The new attention.")] = "taylor",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the attention; can be repeated."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A data set or a folder of images; default: the data of the run."),
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the data.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="File of weights, for models of timm or transformers.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create.")] = None,
    keep_softmax: Annotated[
        int, typer.Option(metavar="K", help="Keep softmax in the K layers with the largest error.")
    ] = 0,
    local: Annotated[
        bool, typer.Option("--local", help="Add a depthwise convolution of the values.")
    ] = False,
    minutes: Annotated[float, typer.Option(metavar="M", help="Time of the distillation.")] = 2.0,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Diagnose, measure zero-shot accuracy and stop.")
    ] = False,
    scratch: Annotated[
        bool,
        typer.Option("--scratch", help="Also train from scratch for as long, in OUT-scratch."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted conversion in --out.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 0,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Convert a softmax ViT: diagnose each layer, swap the attention, distill, write a page."""
    if out is None and not diagnose:
        raise ConfigError(
            "--out DIR is needed: the folder for the run; or --diagnose to stop early"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device must be auto, cpu or cuda, got {device!r}")
    settings: dict[str, Any] = {
        "data": data,
        "data_root": data_root,
        "weights": weights,
        "options": _options(option or []),
        "keep_softmax": keep_softmax,
        "local": local,
        "seed": seed,
        "device": device,
    }
    if diagnose:
        _diagnose(source, attention, settings, as_json=as_json)
        return
    settings |= {
        "out": out,
        "minutes": minutes,
        "overrides": overrides or [],
        "scratch": scratch,
        "resume": resume,
        "quiet": quiet or as_json,
    }
    _convert(source, attention, settings, as_json=as_json)


def _diagnose(source: str, attention: str, settings: dict[str, Any], *, as_json: bool) -> None:
    """Print the diagnosis and both accuracies; nothing is written."""
    from saccade.convert import inspect

    known, _ = inspect(source, attention, **settings)
    say(json.dumps(known.as_json()) if as_json else "\n".join(_before(known)))


def _convert(source: str, attention: str, settings: dict[str, Any], *, as_json: bool) -> None:
    """Convert, and print the diagnosis before and the accuracies after."""
    from saccade.convert import convert as convert_model

    tell = None if as_json else lambda known: say("\n".join(_before(known)), err=True)
    done = convert_model(source, attention, tell=tell, **settings)
    if as_json:
        say(json.dumps({**done.record, "run": str(done.run), "page": str(done.page)}))
    else:
        say("\n".join(_after(done.record, done.run, done.page)))


def _options(words: Sequence[str]) -> dict[str, Any]:
    """Options of the attention, as YAML values."""
    from saccade.io import parse_yaml

    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option must be NAME=VALUE, got {word!r}")
        found[name] = parse_yaml(value, "--option")
    return found


def _before(known: Inspection) -> Iterator[str]:
    """Yield the diagnosis as a table, and both accuracies."""
    name, kept = known.diagnosis.attention, known.student.config.softmax_blocks
    yield "layer  scores          spread  below -1  key shift  distance  output error  verdict"
    for layer in known.diagnosis.layers:
        scores = f"{min(layer.low):.1f} to {max(layer.high):.1f}"
        verdict = "keeps softmax" if layer.index in kept else layer.verdict
        yield (
            f"{layer.index:>5}  {scores:<14}  {layer.mean('spread'):>6.2f}  "
            f"{100 * layer.mean('below'):>6.1f} %  {layer.mean('key_shift'):>9.2f}  "
            f"{layer.mean('distance'):>8.3f}  {100 * layer.output_error:>10.1f} %  {verdict}"
        )
    yield ""
    yield f"softmax    {percent(known.teacher.accuracy)} of {known.teacher.count:,} test images"
    yield f"zero-shot  {percent(known.zero_shot.accuracy)} with {name}, without training"


def _after(record: Mapping[str, Any], run: Path, page: Path) -> Iterator[str]:
    change = record["recovered_difference"]
    low, high = (f"{100 * change[key]:+.2f}" for key in ("low", "high"))
    yield f"softmax    {percent(record['teacher_accuracy'])}"
    yield f"zero-shot  {percent(record['zero_shot_accuracy'])}"
    yield (
        f"recovered  {percent(record['recovered_accuracy'])} after {record['seconds']:.0f} s "
        f"({100 * change['value']:+.2f} points, {low} to {high})"
    )
    if "scratch_accuracy" in record:
        yield (
            f"scratch    {percent(record['scratch_accuracy'])} after "
            f"{record['scratch_seconds']:.0f} s"
        )
    for row in record["speed"]:
        yield (
            f"{row['tokens']:>6,} tokens  softmax {row['softmax_ms']:,.1f} ms, "
            f"{record['attention']} {row['attention_ms']:,.1f} ms a block"
        )
    yield f"run        {run}"
    yield f"page       {page}"
