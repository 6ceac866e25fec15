"""`saccade tune`: search a recipe's settings by validation accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.tables import print_table
from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.config import Config
    from saccade.study.tuning import TuningFolder

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def tune(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe with a search section; --resume can do without."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Changes, as in train.epochs=5."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials in all, over all workers and resumes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the search.")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe, random or grid")] = None,
    pruner: Annotated[str | None, typer.Option(help="median, hyperband or none")] = None,
    metric: Annotated[str | None, typer.Option(help="val_accuracy (if absent) or val_loss")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="sqlite (if absent), or journal for workers on many machines"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes on this machine.")] = 1,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with, or join, the search in --out; start a new one."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Search the settings that a recipe's search section names; the test set is never used.

    More workers, here or on other machines: the same command with --resume and the same --out.
    """
    if out is None:
        raise ConfigError("--out DIR is needed: the folder that the search goes to")
    changes = [*(overrides or [])]
    changes += [f"tune.sampler={sampler}"] if sampler is not None else []
    changes += [f"tune.pruner={pruner}"] if pruner is not None else []
    config = _resolve(recipe, changes, resume=resume)
    from saccade.study.tuning import Settings, TuningFolder, join_search, start_search
    from saccade.study.tuning import tune as run

    if resume and TuningFolder(out).exists():
        folder = join_search(out, config, trials=trials, metric=metric, storage=storage)
    elif config is None or recipe is None:
        raise ConfigError(
            f"--resume: there is no search in {str(out)!r} (no study.json); RECIPE starts one"
        )
    elif trials is None:
        raise ConfigError("--trials N is needed: how many to run in all")
    else:
        asked = {"metric": metric, "storage": storage}
        given = {name: value for name, value in asked.items() if value is not None}
        folder = start_search(out, config, Settings(recipe, trials, **given))
    wanted, asked_for = folder.trials_wanted(), folder.settings().trials
    if wanted < asked_for:
        typer.echo(f"the grid has {wanted} places: {wanted} trials, not {asked_for}", err=True)
    results = run(folder, jobs=jobs, say=lambda line: typer.echo(line, err=True))
    if as_json:
        typer.echo(json.dumps(results))
    else:
        _show(results, folder)


def _resolve(recipe: str | None, changes: list[str], *, resume: bool) -> Config | None:
    """The configuration asked for; None where --resume leaves it to the search itself."""
    from saccade.config import load_config

    if recipe is None or "=" in recipe:
        if not resume:
            raise ConfigError("RECIPE is needed: see `saccade list recipes`")
        if changes or recipe is not None:
            raise ConfigError("--resume without RECIPE takes no changes: name the recipe too")
        return None
    config = load_config(recipe, changes)
    for change in changes:
        key, _, value = change.partition("=")
        if key.strip() in config.search:
            raise ConfigError(
                f"{change}: the search decides {key.strip()}; 'search.{key.strip()}=[{value}]' "
                "leaves it one choice"
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
