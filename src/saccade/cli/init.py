"""`saccade init`: write a recipe for a folder of images, to edit and train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.terminal import say
from saccade.errors import ConfigError, writing_error

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def init(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder with one sub-folder per class, or with train/, val/, test/."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: FOLDER.yaml in the current folder."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Choose a recipe for a folder of images, as `saccade train FOLDER` does, and write it."""
    from saccade.data.folder_recipe import choose_recipe, inspect_folder
    from saccade.io import write_file

    path = Path(f"{folder.absolute().name}.yaml") if out is None else out
    if path.suffix not in {".yaml", ".yml"}:
        raise ConfigError(f"--out must end in .yaml or .yml, got {str(path)!r}")
    if path.exists() and not force:
        raise ConfigError(f"{str(path)!r} exists: choose another --out, or --force to replace it")
    _, text = choose_recipe(inspect_folder(folder))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ConfigError) from None
    for line in text.splitlines():
        if line.startswith("# "):
            say(line[2:])
    say(f"recipe       {path}")
    say(f"to train it  saccade train {path} --out runs/{path.stem}")
