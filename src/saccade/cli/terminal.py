"""What commands print: lines, tables, results; closed streams, encodings, control characters."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import typer

__all__ = [
    "INTERRUPTED",
    "cells",
    "escape",
    "finish",
    "fit",
    "in_words",
    "open_closed_streams",
    "padded",
    "percent",
    "print_table",
    "print_tables",
    "say",
    "tell",
    "terminal_width",
    "write_any_name",
]

STREAMS = ("stdin", "stdout", "stderr")
INTERRUPTED = 130


class Measured(Protocol):
    """A result that may be partial."""

    complete: bool

    def to_json(self) -> str:
        """The result as a JSON document."""


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, for this process and its children.

    Python sets a closed stream to None. The next file that is opened gets its descriptor, so a
    library that prints would write into that file, perhaps a checkpoint.
    """
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def say(text: str, *, err: bool = False) -> None:
    """Print one or more lines with terminal control characters escaped.

    Line breaks are kept; pass names that may contain them through `escape` first.
    """
    typer.echo("\n".join(map(escape, text.split("\n"))), err=err)


def tell(line: str) -> None:
    """Print a line about the command's progress on stderr."""
    say(f"saccade: {line}", err=True)


def escape(name: str) -> str:
    """Escape line breaks and terminal control characters in a name."""
    from saccade.io import escape_for_terminal  # not needed for `--help`

    return escape_for_terminal(name)


def write_any_name() -> None:
    """Print characters that the terminal's encoding lacks as escapes, without an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_table(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is text and whose others are numbers.

    If the terminal is too narrow, each row is printed as a list, so no number is cut.
    """
    from rich.console import Console

    rows = [list(line) for line in lines]
    table = _as_table(columns, rows)
    width = terminal_width()
    console = Console(width=width)
    needed = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    if title:
        Console(width=width or max(200, needed)).print(title, markup=False, highlight=False)
    if width is None or needed <= width:
        Console(width=max(needed, width or 0)).print(table)
    else:
        console.print()
        for row in rows:
            _print_stacked(console, columns, row)


def print_tables(tables: Iterable[Any]) -> None:
    """Print tables that have a title, columns and lines."""
    for table in tables:
        print_table(table.title, table.columns, table.lines)


def _as_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """Build the table for rich."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(escape(column), no_wrap=True, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _print_stacked(console: Any, columns: Sequence[str], row: Sequence[str]) -> None:
    """Print a row as its name and one line for each value. Only the name may wrap."""
    wide = max(map(cells, columns[1:]), default=0)
    console.print(row[0], markup=False, highlight=False)
    for column, value in zip(columns[1:], row[1:], strict=True):
        line = f"  {padded(column, wide)}  {value}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()


def terminal_width() -> int | None:
    """Width of the terminal on stdout in columns; None if stdout is a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def padded(text: str, width: int) -> str:
    """Pad a text with spaces to `width` terminal columns."""
    return text + " " * (width - cells(text))


def fit(text: str, width: int) -> str:
    """Shorten a text to `width` terminal columns."""
    if cells(text) <= width:
        return text
    kept = ""
    for letter in text:
        if cells(kept + letter) >= width:
            break
        kept += letter
    return f"{kept}…"


def cells(text: str) -> int:
    """Terminal columns that a text takes; East Asian characters and emoji take two."""
    from rich.cells import cell_len

    return cell_len(text)


def in_words(key: str, noun: str) -> str:
    """A key of a result for people, with what the inputs are."""
    words = {"img_per_s": f"{noun}s per s", "skipped_images": f"skipped {noun}s"}
    return words[key] if noun != "image" and key in words else key.replace("_", " ")


def percent(share: float | None) -> str:
    """A fraction in percent with two decimals; a dash for None."""
    return "-" if share is None else f"{100 * share:.2f} %"


def finish(
    result: Measured,
    show: Callable[[], None],
    write: Callable[[], Sequence[Path]] | None,
    *,
    as_json: bool,
) -> None:
    """Print a result, write its files, and exit with code 130 if it was interrupted."""
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        show()
    for path in write() if write is not None else ():
        typer.echo(f"wrote {path}", err=True)
    if not result.complete:
        raise typer.Exit(INTERRUPTED)
