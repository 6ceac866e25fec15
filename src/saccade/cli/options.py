"""Options that several commands have, and options with several comma-separated values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.errors import ConfigError

__all__ = [
    "AsJson",
    "Device",
    "JsonLines",
    "Launchers",
    "Out",
    "Overrides",
    "Passes",
    "Pretrained",
    "Quiet",
    "Recipe",
    "Resume",
    "SlurmOptions",
    "Threads",
    "Weights",
    "numbers",
    "words",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Out = Annotated[Path | None, typer.Option(help="Folder for the result files.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide progress.")]
Weights = Annotated[
    str | None, typer.Option(help="best or last; default: as the run was configured")
]
Pretrained = Annotated[
    str | None,
    typer.Option(help="Use the pretrained model of this name: see `saccade list weights`."),
]

Recipe = Annotated[
    str | None,
    typer.Argument(
        help="A recipe's name, a YAML file or a folder of images; optional with --resume."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Overrides such as train.epochs=5."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Resume the study in --out, join its jobs in Slurm, or start it."
    ),
]
Launchers = Annotated[
    str, typer.Option(help="Where to run: local (processes of this machine) or slurm (jobs).")
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE,...",
        help="Options of sbatch, such as partition=gpu,gpus-per-node=1,time=02:00:00.",
    ),
]

Passes = Annotated[
    str | None, typer.Option(help="forward, training (forward and backward), or both.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads for torch.")]


def words(option: str, text: str | None) -> list[str]:
    """Split a comma-separated option; an absent option gives no words, an empty one an error."""
    if text is None:
        return []
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise ConfigError(f"{option} must be values separated by commas, got {text!r}")
    return found


def numbers(option: str, text: str | None) -> list[int]:
    """Split a comma-separated option into integers, as `words` does."""
    found = words(option, text)
    try:
        return [int(word) for word in found]
    except ValueError:
        raise ConfigError(f"{option} must be integers separated by commas, got {text!r}") from None
