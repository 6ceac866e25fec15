"""Images named on the command line. Unreadable ones are reported after the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import typer

from saccade.cli.streams import say
from saccade.errors import DataError

__all__ = ["exit_if_any", "find_each"]


def find_each(
    find: Callable[[list[str]], list[str]], words: Iterable[str]
) -> tuple[list[str], list[DataError]]:
    """The images that the words name, and one error for each word that names none."""
    names: list[str] = []
    faults: list[DataError] = []
    for word in words:
        try:
            names += find([word])
        except DataError as fault:
            faults.append(fault)
    return names, faults


def exit_if_any(faults: Sequence[DataError]) -> None:
    """Print each distinct error once and exit with code 3; return if there are no errors."""
    for line in dict.fromkeys(map(str, faults)):
        say(f"saccade: {line}", err=True)
    if faults:
        raise typer.Exit(DataError.exit_code)
