"""`saccade tune`: search a recipe's settings by validation accuracy."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import AsJson, Launchers, Overrides, Resume, SlurmOptions
from saccade.cli.terminal import print_table, say
from saccade.errors import ConfigError
from saccade.train.progress import print_line

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.study.tuning import TuningFolder

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def tune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe with a search section, or a folder of images; optional with --resume."
        ),
    ] = None,
    overrides: Overrides = None,
    trials: Annotated[
        int | None, typer.Option(help="Total number of trials over all workers and resumes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the search.")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, random or grid")] = None,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none")] = None,
    metric: Annotated[str | None, typer.Option(help="val_accuracy (default) or val_loss")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="journal (default), or postgresql://USER@HOST/DATABASE"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 1,
    launcher: Launchers = "local",
    slurm: SlurmOptions = None,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Search the settings in a recipe's search section. The test set is not used."""
    if out is None:
        raise ConfigError("--out DIR is needed: the folder for the search")
    changes = [*(overrides or [])]
    changes += [f"tune.sampler={sampler}"] if sampler is not None else []
    changes += [f"tune.pruner={pruner}"] if pruner is not None else []
    config = _resolve(recipe, changes, resume=resume)
    from saccade.study.launchers import choose_launcher
    from saccade.study.tuning import Settings, TuningFolder, join_search, start_search
    from saccade.study.tuning import tune as run

    place = choose_launcher(launcher, slurm or [])

    if resume and TuningFolder(out).exists():
        folder = join_search(out, config, trials=trials, metric=metric, storage=storage)
    elif config is None or recipe is None:
        raise ConfigError(
            f"--resume: there is no search in {str(out)!r} (no study.json); RECIPE starts one"
        )
    elif trials is None:
        raise ConfigError("--trials N is needed: the total number of trials")
    else:
        asked = {"metric": metric, "storage": storage}
        given: dict[str, Any] = {k: value for k, value in asked.items() if value is not None}
        folder = start_search(out, config, Settings(recipe, trials, **given), say=print_line)
    wanted, asked_for = folder.trials_wanted(), folder.settings().trials
    if wanted < asked_for:
        typer.echo(f"the grid has {wanted} points: {wanted} trials, not {asked_for}", err=True)
    results = run(folder, jobs=jobs, launcher=place, say=print_line)
    if as_json:
        typer.echo(json.dumps(results))
    else:
        _show(results, folder)


def _resolve(recipe: str | None, changes: list[str], *, resume: bool) -> Config | None:
    """The configuration of the command line; None to resume with the saved one."""
    from saccade.data.folder_recipe import resolve_recipe

    if recipe is None or "=" in recipe:
        if not resume:
            raise ConfigError("RECIPE is needed: see `saccade list recipes`")
        if changes or recipe is not None:
            raise ConfigError("--resume without RECIPE takes no changes: give RECIPE too")
        return None
    config = resolve_recipe(recipe, changes, partial(say, err=True))
    for change in changes:
        key, _, value = change.partition("=")
        if key.strip() in config.search:
            raise ConfigError(
                f"{change}: {key.strip()} is set by the search; to fix its value, use "
                f"'search.{key.strip()}=[{value}]'"
            )
    return config


def _show(results: dict[str, Any], folder: TuningFolder) -> None:
    keys = list(dict.fromkeys(key for row in results["trials"] for key in row["params"]))
    names = [key.rpartition(".")[2] for key in keys]
    metric, best = results["metric"], results["best"]
    lines = [
        [
            f"{row['number']}{' *' if row['number'] == best['number'] else ''}",
            row["state"],
            _short(row["value"]),
            *(_short(row["params"].get(key)) for key in keys),
            str(row["epochs"]),
            f"{row['seconds']:.1f}",
        ]
        for row in results["trials"]
    ]
    print_table("", ["trial", "state", metric, *names, "epochs", "seconds"], lines)
    for row in results["trials"]:
        if row["state"] == "failed":
            typer.echo(f"trial {row['number']} failed: {row['reason']}")
    if results["importance"]:
        shares = results["importance"].items()
        typer.echo("importance   " + ", ".join(f"{key} {share:.0%}" for key, share in shares))
    else:
        typer.echo(f"importance   left out: {results['importance_left_out']}")
    typer.echo(f"best         trial {best['number']}, {metric} {best['value']:.4f}")
    typer.echo(f"recipe       {folder.path / 'best.yaml'}")
    typer.echo(f"plots        {folder.path / 'plots'}")
    typer.echo(f"runs         {folder.path / 'trials'}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
