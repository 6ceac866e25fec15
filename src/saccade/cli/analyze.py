"""`saccade analyze`: the number of tokens at which linear-time attention becomes faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import AsJson, Device, Out, Passes, Threads, numbers, words
from saccade.cli.terminal import finish, print_tables

if TYPE_CHECKING:
    from saccade.bench.findings import Report

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


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
    passes: Passes = "forward,training",
    threads: Threads = None,
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

    from saccade.bench.crossover.measure import linear_attentions
    from saccade.bench.crossover.run import DTYPE, CrossoverFindings, run_crossover
    from saccade.bench.findings import check_folder, write_findings
    from saccade.bench.shapes import Grid, check_passes
    from saccade.environment import describe_environment, hardware_slug, resolve_device
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
    if out is not None:
        check_folder(out)
    try:
        _with_bar(
            lambda report: run_crossover(
                findings,
                chosen,
                head_dims=tuple(sorted(head_dims)),
                attentions=names,
                passes=directions,
                seconds=seconds,
                report=report,
            )
        )
    except KeyboardInterrupt:
        typer.echo("interrupted; the results are partial", err=True)
    write = None if out is None else partial(write_findings, findings, out, hardware_slug(chosen))
    finish(findings, lambda: print_tables(findings.tables()), write, as_json=as_json)


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
