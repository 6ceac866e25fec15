"""`saccade list`: names that other commands and recipes accept."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from saccade.cli.options import AsJson
from saccade.errors import UnknownNameError

app = typer.Typer(rich_markup_mode=None, add_completion=False)

KINDS = ("models", "attentions", "datasets", "recipes", "weights")


@app.command()
def list_names(
    kind: Annotated[str, typer.Argument(help="models, attentions, datasets, recipes or weights")],
    pattern: Annotated[str, typer.Argument(help="A shell pattern such as 'taylor*'.")] = "*",
    as_json: AsJson = False,
) -> None:
    """List models, attentions, datasets, recipes or pretrained weights.

    Attentions are listed with their kind (quadratic, pure linear or hybrid), the lengths of
    sequences that they accept, and whether weights can be negative and sum to 1.
    """
    names = [name for name in _names(kind) if fnmatchcase(name, pattern)]
    if as_json:
        typer.echo(json.dumps(names))
    elif names:
        typer.echo("\n".join(_described(names) if kind == "attentions" else names))
    else:
        typer.echo(f"no {kind} match {pattern!r}", err=True)


def _described(names: list[str]) -> list[str]:
    """Attentions with their kind (pure or hybrid), the lengths they accept, and their rows."""
    from saccade.layers import ATTENTIONS

    entries = [ATTENTIONS[name] for name in names]
    cells = [("attention", "kind", "length", "rows")]
    cells += [(n, e.kind, e.length, e.rows) for n, e in zip(names, entries, strict=True)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in cells]
    return ["  ".join(row).rstrip() for row in rows]


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
    if kind == "weights":
        from saccade.models.pretrained import list_pretrained

        return list_pretrained()
    raise UnknownNameError("kind of names", kind, KINDS)
