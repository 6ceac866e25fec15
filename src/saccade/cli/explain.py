"""`saccade explain`: attention maps of a run's model, and pictures of its data."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import Device, JsonLines, Pretrained, Weights
from saccade.cli.sources import (
    exit_if_any,
    find_each,
    open_run_or_model,
    split_words,
)
from saccade.cli.terminal import escape, say
from saccade.errors import ConfigError, DataError

if TYPE_CHECKING:
    from saccade.explain.explanation import Explainer, Explanation
    from saccade.runs import RunFolder

app = typer.Typer(rich_markup_mode=None, add_completion=False)

INTERRUPTED = 130
DEFAULT_OUT = Path("explained")


@app.command()
def explain(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] [IMAGES]...",
            help="RUN is a run folder or a folder of save_pretrained; without it a pretrained "
            "model is used. IMAGES are files, folders, - for one image from stdin, or images of "
            "the model's own data: test:17, val:0-4.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the figures; for a pretrained model by default explained."),
    ] = None,
    pretrained: Pretrained = None,
    method: Annotated[
        str, typer.Option(help="Method of the summary map: attention, rollout or gradient.")
    ] = "rollout",
    layers: Annotated[
        str | None,
        typer.Option(help="Layers to show, such as 0,2-4 or -1; default: up to four layers."),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Heads to show, such as 0,2-4; default: all.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="A second run, drawn beside the first for each image.")
    ] = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Draw training samples, confused pairs, confident errors."),
    ] = False,
    foreground: Annotated[
        bool,
        typer.Option(
            "--foreground",
            help="For data set shapes: share of attention on the shape, untrained and trained.",
        ),
    ] = False,
    weights: Weights = None,
    device: Device = "auto",
    as_json: JsonLines = False,
) -> None:
    """Draw attention maps of a trained model: one figure for each image, as PNG and SVG.

    Missing or unreadable images are reported on stderr after the others are drawn, and the exit
    code is 3. Ctrl-C keeps the figures already written.
    """
    needs_run = data or foreground
    run, images, is_pretrained = split_words(words, pretrained, lone_folder=not needs_run)
    out = out or (DEFAULT_OUT if is_pretrained else None)
    _check_task(images, out, compare, data=data, foreground=foreground)
    runs = [open_run_or_model(path) for path in (run, compare) if path is not None]
    first = runs[0]
    if needs_run and isinstance(first, Path):
        raise ConfigError(f"--data and --foreground need a run folder, got {str(first)!r}")
    options = {"weights": weights, "device": device}
    with _interruptible():
        if foreground and not isinstance(first, Path):
            _show_foreground(first, options, as_json=as_json)
        if data and out is not None and not isinstance(first, Path):
            _draw_data(first, out, options, as_json=as_json)
        if images and out is not None:
            chosen = (_indices("--layers", layers), _indices("--heads", heads))
            explainers = _make_explainers(runs, method, *chosen, options)
            _draw_images(explainers, images, out, as_json=as_json)


def _check_task(
    images: list[str] | None,
    out: Path | None,
    compare: Path | None,
    *,
    data: bool,
    foreground: bool,
) -> None:
    """Raise `ConfigError` if there is nothing to do, or no folder for the figures."""
    if not (images or data or foreground):
        raise ConfigError(
            "nothing to explain: name an IMAGE (a file, test:0), --data, --foreground"
        )
    if out is None and (images or data):
        raise ConfigError("--out DIR is needed: the folder for the figures")
    if compare is not None and not images:
        raise ConfigError("--compare needs an IMAGE to show to both runs")


def _indices(option: str, text: str | None) -> list[int] | None:
    """Parse `0,2-4` or `-1` into numbers; None if the option is absent or `all`."""
    if text is None or text == "all":
        return None
    found: list[int] = []
    for word in text.split(","):
        parts = re.fullmatch(r"(-?\d+)(?:-(\d+))?", word.strip())
        if parts is None:
            raise ConfigError(f"{option} must be numbers such as 0,2-4 or -1, or all, got {text!r}")
        first, last = int(parts[1]), int(parts[2] or parts[1])
        if last < first:
            raise ConfigError(
                f"{option} must be ascending ranges, got {word.strip()!r} in {text!r}"
            )
        found += range(first, last + 1)
    return found


def _make_explainers(
    runs: Sequence[RunFolder | Path],
    method: str,
    layers: list[int] | None,
    heads: list[int] | None,
    options: dict[str, Any],
) -> list[Explainer]:
    from saccade.explain.explanation import Explainer
    from saccade.explain.maps import check_method

    chosen = check_method(method)
    return [Explainer(run, method=chosen, layers=layers, heads=heads, **options) for run in runs]


def _draw_images(
    explainers: Sequence[Explainer], words: list[str], out: Path, *, as_json: bool
) -> None:
    from saccade.bench.findings import check_folder
    from saccade.explain.figures import draw_explanations
    from saccade.explain.images import check_same_images
    from saccade.explain.sheet import save

    names, faults = find_each(explainers[0].album.find, words)
    if not names:
        exit_if_any(faults)
    check_same_images([explainer.album for explainer in explainers], names)
    check_folder(out)
    stems = _stems(names, out)
    for name in _progress(names):
        try:
            found = [explainer.explain(explainer.album.open(name)) for explainer in explainers]
        except DataError as fault:
            faults.append(fault)
            continue
        written = save(partial(draw_explanations, found), out / stems[name])
        _say_image(name, found, written, as_json=as_json)
    exit_if_any(faults)


def _say_image(
    name: str, found: Sequence[Explanation], written: Sequence[Path], *, as_json: bool
) -> None:
    if as_json:
        figures = [str(path) for path in written]
        for explanation in found:
            typer.echo(json.dumps(explanation.as_json() | {"image": name, "figures": figures}))
        return
    top = "   ".join(
        "  ".join(f"{escape(label)} {p:.3f}" for label, p in explanation.classes[:3])
        for explanation in found
    )
    say(f"{escape(name)}  {top}  {written[0]}")


def _draw_data(run: RunFolder, out: Path, options: dict[str, Any], *, as_json: bool) -> None:
    from saccade.bench.findings import check_folder
    from saccade.explain.data_pictures import data_pictures
    from saccade.explain.sheet import save

    check_folder(out)
    for picture in _progress(data_pictures(run, **options), total=3):
        written = save(picture.draw, out / picture.name)
        if as_json:
            figures = [str(path) for path in written]
            typer.echo(json.dumps({"picture": picture.name, **picture.facts, "figures": figures}))
        else:
            say(f"{escape(picture.name)}  {written[0]}")


def _show_foreground(run: RunFolder, options: dict[str, Any], *, as_json: bool) -> None:
    from saccade.explain.foreground import measure_foreground

    result = measure_foreground(run, each=_progress, **options)
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"attention on the shape, {result['images']} test images, 95 % interval")
    typer.echo(f"equal weights {_percent(result['uniform'])}")
    for method, found in result["methods"].items():
        before, after = _percent(found["untrained"]), _percent(found["trained"])
        typer.echo(f"{method:<10}  untrained {before}   trained {after}")


def _percent(interval: dict[str, float]) -> str:
    mean, low, high = (100 * interval[key] for key in ("mean", "low", "high"))
    return f"{mean:5.1f} % ({low:.1f} to {high:.1f})"


def _stems(names: Sequence[str], out: Path) -> dict[str, str]:
    """A distinct file name in `out` for each image; no name of an input image is reused."""
    images = {Path(name).resolve() for name in names}
    taken = {path.stem for path in images if path.parent == out.resolve()}
    stems: dict[str, str] = {}
    for name in names:
        plain = "stdin" if name == "-" else Path(name).stem
        stem = re.sub(r"[^\w.-]+", "-", plain) or "image"
        wanted = chain([stem], (f"{stem}-{number}" for number in count(2)))
        stems[name] = next(word for word in wanted if word not in taken)
        taken.add(stems[name])
    return stems


def _progress(items: Iterable[Any], total: int | None = None) -> Iterator[Any]:
    """Yield the items; show a progress bar if stderr is a terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    with progress.Progress(
        progress.TextColumn("explaining"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # only a terminal mixes results with the bar
        disable=not console.is_terminal,
    ) as bar:
        yield from bar.track(items, total)


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("saccade: interrupted; the figures written so far are kept", err=True)
        raise typer.Exit(INTERRUPTED) from None
