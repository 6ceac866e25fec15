"""Tables as CSV: plain numbers, nothing rounded, every column."""

from __future__ import annotations

import csv
import io

from saccade.report.page import Table

__all__ = ["as_csv"]

FORMULA_STARTS = ("=", "+", "-", "@", "\t")


def as_csv(table: Table) -> str:
    """The table with a line of names; an empty field is a value that is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_field(column.key) for column in table.columns)
    for row in table.rows:
        writer.writerow(_field(cell.value) for cell in row)
    return text.getvalue()


def _field(value: float | str | None) -> float | str | None:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
