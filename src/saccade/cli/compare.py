"""`saccade compare`: train one recipe with several attentions and compare the results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.launching import Launchers, SlurmOptions
from saccade.cli.lists import words
from saccade.cli.streams import say
from saccade.cli.tables import print_table
from saccade.errors import ConfigError, Preempted, TrainingError
from saccade.io import read_json_object

if TYPE_CHECKING:
    from saccade.study.comparison import Plan

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def compare(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name, a YAML file or a folder of images; optional with --resume."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION.KEY=VALUE]...", help="Overrides that apply to all attentions."
        ),
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="Names, separated by commas; default: all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds; default 3.")] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Cross-validate the training set in this many folds instead."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Attention to compare with; default: softmax, else the first name."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Runs at a time; default: one a GPU, up to 4 on a CPU, no limit in Slurm."
        ),
    ] = None,
    launcher: Launchers = "local",
    slurm: SlurmOptions = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the comparison.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the comparison in --out, join its jobs in Slurm, or start it.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Train several attentions under the same settings and test their differences.

    `saccade compare status DIR` shows the state of each run.
    """
    if out is None:
        raise ConfigError("--out DIR is needed: the folder for the comparison")
    names = words("--attention", attention) or None
    asked = {"attentions": names, "seeds": seeds, "folds": folds, "baseline": baseline}
    given = {name: value for name, value in asked.items() if value is not None}
    plan = _plan(recipe, overrides or [], given, out if resume else None)
    from saccade.study import compare as run
    from saccade.study.launchers import choose_launcher

    place = choose_launcher(launcher, slurm or [])
    try:
        results = run(plan, out, jobs=jobs, launcher=place, resume=resume)
    except (Preempted, TrainingError):
        if (out / "results.json").exists():
            so_far = read_json_object(out / "results.json")
            if as_json or _has_runs(so_far):
                _show(so_far, out, None, as_json=as_json)
        raise
    page = _report(out) if _has_runs(results) else None
    _show(results, out, page, as_json=as_json)
    if results["left_out"]:
        from saccade.study.comparison.start import failed_runs

        raise TrainingError(failed_runs(results["left_out"]))


def _has_runs(results: dict[str, Any]) -> bool:
    """True if at least one run has finished."""
    return any(row["runs"] for row in results["rows"])


def _plan(
    recipe: str | None, overrides: list[str], given: dict[str, Any], resumed: Path | None
) -> Plan:
    """The plan of the command line, or the one saved in the folder if no recipe is given."""
    from saccade.study.comparison import ComparisonFolder, make_plan

    if recipe is not None and "=" not in recipe:
        return make_plan(recipe, overrides, tell=partial(say, err=True), **given)
    if resumed is None:
        raise ConfigError("RECIPE is needed: see `saccade list recipes`")
    if recipe is not None or given:
        raise ConfigError("--resume without RECIPE takes no changes: give RECIPE too")
    return ComparisonFolder.open(resumed).plan


def _show(results: dict[str, Any], out: Path, page: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**results, "page": str(page) if page else None, "out": str(out)}))
        return
    _print(results)
    for note in results["notes"]:
        typer.echo(f"note: {note}")
    if page is not None:
        typer.echo(f"page:        {page}")
    typer.echo(f"run folders: {out}")


def _report(out: Path) -> Path | None:
    """Write the report about the comparison and return the path of its page."""
    from saccade.report import write_report

    files = write_report(out).files
    return next((file for file in files if file.suffix == ".html"), None)


def _print(results: dict[str, Any]) -> None:
    """Print one table of accuracies and one of costs."""
    measured = "held-out" if results["measure"] == "fold_accuracy" else "test"
    interval = f"{results['confidence']:.0%} interval"
    print_table(
        f"{measured} accuracy, and its difference to {results['baseline']} in points",
        ["attention", "accuracy", interval, "spread", "diff", "p (corrected)", "runs"],
        [_accuracy(row) for row in results["rows"]],
    )
    print_table(
        "training: s/epoch, img/s, MiB; one image: ms, MFLOPs; error: to softmax",
        ["attention", "s/epoch", "img/s", "ms", "MiB", "params", "MFLOPs", "error"],
        [_cost(row) for row in results["rows"]],
    )


def _accuracy(row: dict[str, Any]) -> list[str]:
    interval = "-"
    if row["accuracy"] is not None:
        interval = f"{100 * row['accuracy_low']:.2f} - {100 * row['accuracy_high']:.2f}"
    return [
        row["attention"],
        _number(row["accuracy"], ".2f", 100, " %"),
        interval,
        _number(row["accuracy_spread"], ".2f", 100),
        _number(row["difference"], "+.2f", 100),
        _number(row["p_corrected"], ".2g"),
        str(row["runs"]),
    ]


def _cost(row: dict[str, Any]) -> list[str]:
    return [
        row["attention"],
        _number(row["seconds_per_epoch"], ".2f"),
        _number(row["img_per_s"], ",.0f"),
        _number(row["latency_ms"], ".2f"),
        _number(row["peak_memory_mib"], ",.1f"),
        _number(row["parameters"], ","),
        _number(row["flops"], ",.2f", 1e-6),
        _number(row["approximation_error"], ".3f"),
    ]


def _number(value: float | None, form: str, factor: float = 1, unit: str = "") -> str:
    if value is None:
        return "-"
    return f"{value if factor == 1 else factor * value:{form}}{unit}"
