"""`saccade train`: train a recipe and write a run folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import AsJson, Overrides, Quiet, Recipe
from saccade.cli.terminal import in_words, say
from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.config import Config

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def train(
    recipe: Recipe = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out; start it if there is none.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved configuration and exit.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check everything, train one step and exit without writing files."
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model and write a run folder.

    With several processes: torchrun --nproc-per-node 2 -m saccade train RECIPE --out DIR
    """
    config = _resolve(recipe, overrides or [], out if resume else None)
    if print_config:
        from saccade.config import dump_config

        typer.echo(dump_config(config), nl=False)
    elif dry_run:
        from saccade.train.run import dry_run as make_dry_run

        _show(make_dry_run(config, out, resume=resume, quiet=quiet), as_json=as_json)
    elif out is None:
        raise ConfigError("--out DIR is needed: the folder for the run")
    else:
        from saccade.train import train as train_run

        summary = train_run(config, out, resume=resume, quiet=quiet)
        _show({**summary, "run": str(out)}, as_json=as_json)


def _resolve(recipe: str | None, overrides: list[str], resumed: Path | None) -> Config:
    """The configuration of the command line, or of the resumed run if no recipe is given."""
    from saccade.config import with_overrides
    from saccade.data.folder_recipe import resolve_recipe
    from saccade.runs import RunFolder

    if recipe is not None and "=" not in recipe:
        return resolve_recipe(recipe, overrides, _tell)
    if resumed is None:
        raise ConfigError("RECIPE is needed: see `saccade list recipes`")
    changes = overrides if recipe is None else [recipe, *overrides]
    return with_overrides(RunFolder.open(resumed).config(), changes)


def _tell(line: str) -> None:
    """Print a line on stderr, from the first process only."""
    if os.environ.get("RANK", "0") == "0":
        say(line, err=True)


def _show(values: dict[str, Any], *, as_json: bool) -> None:
    """Print the result, from the first process only."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        typer.echo(json.dumps(values))
        return
    noun = _noun(values)
    names = {name: in_words(name, noun) for name in values}
    width = max(map(len, names.values()))
    for name, value in values.items():
        typer.echo(f"{names[name]:<{width}}  {_shown(value)}")


def _noun(values: dict[str, Any]) -> str:
    """What the inputs of the run are, in the singular."""
    from saccade.nouns import noun_of
    from saccade.runs import RunFolder

    return noun_of(RunFolder(values["run"]).dataset().get("kind")) if "run" in values else "image"


def _shown(value: Any) -> str:
    """Format a value of the summary; skipped images become their number in each split."""
    if isinstance(value, dict):
        return ", ".join(f"{own['count']} in {split}" for split, own in value.items()) or "none"
    return str(round(value, 4) if isinstance(value, float) else value)
