"""`saccade compare`: train one recipe with several attentions and compare the results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.compare_tables import print_results, show_estimate
from saccade.cli.options import AsJson, Launchers, Recipe, Resume, SlurmOptions, words
from saccade.cli.terminal import say
from saccade.errors import ConfigError, Preempted, TrainingError
from saccade.io import read_json_object

if TYPE_CHECKING:
    from saccade.study.comparison import Plan
    from saccade.study.launchers import Launcher

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def compare(
    recipe: Recipe = None,
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
    tune: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="First tune each attention with N trials on validation images; then train with "
            "the shared and the tuned settings.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Runs at a time; default: one per GPU, up to 4 on a CPU, no limit in Slurm."
        ),
    ] = None,
    launcher: Launchers = "local",
    slurm: SlurmOptions = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the comparison.")] = None,
    resume: Resume = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the trials, the runs and an estimate, and write no files."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train several attentions under the same settings and test their differences.

    `saccade compare status DIR` shows the state of each run.
    """
    if out is None and not dry_run:
        raise ConfigError("--out DIR is needed: the folder for the comparison")
    names = words("--attention", attention) or None
    asked = {"attentions": names, "seeds": seeds, "folds": folds, "baseline": baseline}
    asked["trials"] = tune
    given = {name: value for name, value in asked.items() if value is not None}
    plan = _plan(recipe, overrides or [], given, out if resume else None)
    if dry_run or out is None:
        from saccade.study.comparison.start import estimate

        show_estimate(estimate(plan), as_json=as_json)
        return
    from saccade.study.launchers import choose_launcher

    place = choose_launcher(launcher, slurm or [])
    _compare(plan, out, place, jobs=jobs, resume=resume, as_json=as_json)


def _compare(
    plan: Plan, out: Path, launcher: Launcher, *, jobs: int | None, resume: bool, as_json: bool
) -> None:
    """Train the runs of the plan, and print the results, also of an interrupted comparison."""
    from saccade.study import compare as run

    try:
        results = run(plan, out, jobs=jobs, launcher=launcher, resume=resume)
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
    print_results(results)
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
