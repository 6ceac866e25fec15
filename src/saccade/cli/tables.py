"""Tables on stdout. If the terminal is too narrow, each row is printed as a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["cells", "fit", "in_words", "padded", "print_table", "terminal_width"]


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
