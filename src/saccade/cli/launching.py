"""Options of commands that run many runs."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Launchers", "SlurmOptions"]

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
