"""Tables on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["print_table"]


def print_table(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is words and whose others are numbers."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=escape(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    for i, column in enumerate(columns):
        shown.add_column(column, no_wrap=True, justify="left" if i == 0 else "right")
    for line in lines:
        shown.add_row(*map(escape, line))
    console = Console()
    # Into a pipe or a file a table may be as wide as it likes.
    (console if console.is_terminal else Console(width=200)).print(shown)
