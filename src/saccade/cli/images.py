"""Images that a user names: those that cannot be had are told at the end, and hold up no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import typer

from saccade.errors import DataError

__all__ = ["exit_if_any", "find_each"]


def find_each(
    find: Callable[[list[str]], list[str]], words: Iterable[str]
) -> tuple[list[str], list[DataError]]:
    """The names that the words stand for, and what is wrong with the words that stand for none."""
    names: list[str] = []
    faults: list[DataError] = []
    for word in words:
        try:
            names += find([word])
        except DataError as fault:
            faults.append(fault)
    return names, faults


def exit_if_any(faults: Sequence[DataError]) -> None:
    """Say what was wrong, each once, and leave with the exit code for it; go on if nothing was."""
    for line in dict.fromkeys(map(str, faults)):
        typer.echo(f"saccade: {line}", err=True)
    if faults:
        raise typer.Exit(DataError.exit_code)
