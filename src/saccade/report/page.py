"""A report without a format: sections of plain text, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from saccade.report.style import Drawing, Series

__all__ = [
    "NOTHING",
    "Block",
    "Cell",
    "Column",
    "Figure",
    "Figures",
    "Items",
    "Listing",
    "Page",
    "Section",
    "Table",
    "file_names",
    "text_cell",
    "text_column",
]

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        value: Exact value, used in CSV files and for sorting.
    """

    text: str
    value: float | str | None = None
    strong: bool = False


def text_cell(text: str) -> Cell:
    """A cell of text."""
    return Cell(text, text)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Name in CSV files.
        title: Heading. A column without a heading appears only in CSV files.
    """

    key: str
    title: str = ""
    is_number: bool = True


def text_column(key: str, title: str) -> Column:
    """A column of text."""
    return Column(key, title, is_number=False)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Name of its files.
        note: Explanation shown below the table.
        folded: True if the table is collapsed until a reader opens it.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False

    def shown(self) -> Table:
        """The displayed table: columns with a heading that are not empty."""
        kept = [
            place
            for place, column in enumerate(self.columns)
            if column.title and any(row[place].text not in ("", NOTHING) for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)


@dataclass(frozen=True)
class Figure:
    """A figure; `name` is the name of its files."""

    name: str
    title: str
    caption: str
    drawing: Drawing


@dataclass(frozen=True)
class Figures:
    """Figures side by side if the page is wide enough; small ones three in a row."""

    figures: Sequence[Figure]
    small: bool = False


@dataclass(frozen=True)
class Listing:
    """Preformatted text, such as a configuration."""

    title: str
    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: Sequence[str]


Block = str | Items | Table | Figures | Listing
"""A string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A heading and the content below it."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """The whole report.

    Attributes:
        series: Color and marker of each group, by label.
        has_figure_files: True if the figures are also written as files, which the page links to.
    """

    title: str
    headline: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    series: Mapping[str, Series]
    has_figure_files: bool = True
    command: str = "saccade report"

    @property
    def tables(self) -> list[Table]:
        """All tables in their order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Table)]

    @property
    def figures(self) -> list[Figure]:
        """All figures in their order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [own for block in blocks if isinstance(block, Figures) for own in block.figures]


def file_names(labels: Iterable[str]) -> dict[str, str]:
    """A unique name for each label that is valid in any file system."""
    names: dict[str, str] = {}
    for label in labels:
        safe = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-")[:60] or "group"
        taken = sum(name == safe or name.startswith(f"{safe}.") for name in names.values())
        names[label] = f"{safe}.{taken + 1}" if taken else safe
    return names
