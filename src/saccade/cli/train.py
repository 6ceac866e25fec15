"""`saccade train`: a recipe in, a run folder out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.config import Config

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe's name or a YAML file; --resume can do without."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Changes, as in train.epochs=5."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; start it if it is new.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the resolved configuration and stop.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Stop where the run would or after a step; write nothing."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a model and leave a run folder.

    With many processes: torchrun --nproc-per-node 2 -m saccade train RECIPE --out DIR
    """
    config = _resolve(recipe, overrides or [], out if resume else None)
    if print_config:
        from saccade.config import dump_config

        typer.echo(dump_config(config), nl=False)
    elif dry_run:
        from saccade.train.rehearsal import rehearse

        _show(rehearse(config, out, resume=resume, quiet=quiet), as_json=as_json)
    elif out is None:
        raise ConfigError("--out DIR is needed: the folder that the run goes to")
    else:
        from saccade.train import train as train_run

        summary = train_run(config, out, resume=resume, quiet=quiet)
        _show({**summary, "run": str(out)}, as_json=as_json)


def _resolve(recipe: str | None, overrides: list[str], resumed: Path | None) -> Config:
    """The configuration asked for; that of the run itself where no recipe is named."""
    from saccade.config import load_config, with_overrides
    from saccade.runs import RunFolder

    if recipe is not None and "=" not in recipe:
        return load_config(recipe, overrides)
    if resumed is None:
        raise ConfigError("RECIPE is needed: see `saccade list recipes`")
    changes = overrides if recipe is None else [recipe, *overrides]
    return with_overrides(RunFolder.open(resumed).config(), changes)


def _show(values: dict[str, Any], *, as_json: bool) -> None:
    """Print the result, once however many processes there are."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        typer.echo(json.dumps(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        shown = round(value, 4) if isinstance(value, float) else value
        typer.echo(f"{name.replace('_', ' '):<{width}}  {shown}")
