"""`saccade list`: names that other commands and recipes accept."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from saccade.errors import UnknownNameError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

KINDS = ("models", "attentions", "datasets", "recipes")


@app.command()
def list_names(
    kind: Annotated[str, typer.Argument(help="models, attentions, datasets or recipes")],
    pattern: Annotated[str, typer.Argument(help="A shell pattern such as 'taylor*'.")] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List models, attentions, datasets or recipes."""
    names = [name for name in _names(kind) if fnmatchcase(name, pattern)]
    if as_json:
        typer.echo(json.dumps(names))
    elif names:
        typer.echo("\n".join(names))
    else:
        typer.echo(f"no {kind} match {pattern!r}", err=True)


def _names(kind: str) -> list[str]:
    if kind == "recipes":
        from saccade.config import list_recipes

        return list_recipes()
    if kind == "models":
        from saccade.models import list_models

        return list_models()
    if kind == "attentions":
        from saccade.layers import list_attentions

        return list_attentions()
    if kind == "datasets":
        from saccade.data import list_datasets

        return [*list_datasets(), "hf:<name>"]
    raise UnknownNameError("kind of names", kind, KINDS)
