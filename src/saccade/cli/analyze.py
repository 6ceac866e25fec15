"""`saccade analyze`: the number of tokens at which linear-time attention becomes faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.lists import numbers, words
from saccade.cli.tables import print_table

if TYPE_CHECKING:
    from saccade.bench.findings import Findings, Report

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

INTERRUPTED = 130

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path | None, typer.Option(help="Folder for JSON, Markdown, PNG and SVG.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.callback()
def _analyze() -> None:
    """Analyze attention on this machine."""


@app.command()
def crossover(
    d: Annotated[
        str, typer.Option("--d", help="Head dimensions D, separated by commas.")
    ] = "16,32,64,128",
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86400,
            help="Approximate time limit; default 210 on a CPU, 90 on a GPU, for each pass.",
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="Attentions beside the forms of taylor, separated by commas; default: every "
            "linear attention."
        ),
    ] = None,
    passes: Annotated[
        str, typer.Option(help="forward, training (forward and backward), or both.")
    ] = "forward,training",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads for torch.")
    ] = None,
    device: Device = "auto",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Find the number of tokens at which linear-time attention becomes faster.

    Compares theory with this machine. Times direct, efficient and softmax attention and every
    linear attention over N, forward and backward, and finds where their curves cross. A coarse
    pass covers all D; the remaining time refines the crossings. Run it on an idle machine.
    """
    import torch

    from saccade.bench.crossover.lines import linear_attentions
    from saccade.bench.crossover.run import DTYPE, CrossoverFindings, run_crossover
    from saccade.bench.shapes import Grid, check_passes
    from saccade.environment import describe_environment, resolve_device
    from saccade.layers import ATTENTIONS

    chosen = resolve_device(device)
    head_dims = Grid(("sdpa",), (1,), tuple(numbers("--d", d))).head_dims
    if threads is not None:
        torch.set_num_threads(threads)
    names = linear_attentions() if attention is None else words("--attention", attention)
    for name in names:
        ATTENTIONS[name]  # raises for an unknown name
    directions = check_passes(words("--passes", passes))
    findings = CrossoverFindings(describe_environment(chosen), DTYPE[chosen.type])

    def run(report: Report) -> None:
        run_crossover(
            findings,
            chosen,
            head_dims=tuple(sorted(head_dims)),
            attentions=names,
            passes=directions,
            seconds=seconds,
            report=report,
        )

    _finish(findings, run, out, as_json=as_json)


def _finish(
    findings: Findings, run: Callable[[Report], None], out: Path | None, *, as_json: bool
) -> None:
    """Run with a progress bar, then print and write the results, partial ones after Ctrl-C."""
    from saccade.bench.findings import write_findings
    from saccade.bench.output import check_folder
    from saccade.environment import hardware_slug, resolve_device

    if out is not None:
        check_folder(out)
    try:
        _with_bar(run)
    except KeyboardInterrupt:
        typer.echo("interrupted; the results are partial", err=True)
    if as_json:
        typer.echo(findings.to_json(), nl=False)
    else:
        for table in findings.tables():
            print_table(table.title, table.columns, table.lines)
    if out is not None:
        hardware = hardware_slug(resolve_device(findings.environment["device"]))
        for path in write_findings(findings, out, hardware):
            typer.echo(f"wrote {path}", err=True)
    if not findings.complete:
        raise typer.Exit(INTERRUPTED)


def _with_bar(run: Callable[[Report], None]) -> None:
    """Run with a progress bar on stderr, or one line per step if stderr is no terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        run(lambda message, share: typer.echo(f"[{share:4.0%}] {message}", err=True))
        return
    columns = (progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn())
    shown = progress.TextColumn("{task.description}")
    with progress.Progress(*columns, shown, console=console) as bar:
        task = bar.add_task("", total=1.0)
        run(lambda message, share: bar.update(task, description=message, completed=share))
