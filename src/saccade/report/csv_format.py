"""Tables as CSV with unrounded numbers and all columns."""

from __future__ import annotations

import csv
import io

from saccade.report.page import Table

__all__ = ["as_csv"]

FORMULA_STARTS = ("=", "+", "-", "@", "\t")


def as_csv(table: Table) -> str:
    """The table with a header line; an empty field is an unknown value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_field(column.key) for column in table.columns)
    for row in table.rows:
        writer.writerow(_field(cell.value) for cell in row)
    return text.getvalue()


def _field(value: float | str | None) -> float | str | None:
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
