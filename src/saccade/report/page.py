"""A report before it has a format: sections of text, tables and figures, all of it plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from saccade.report.look import Drawing, Series

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
]


NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    Attributes:
        text: As a reader sees it.
        value: As a machine reads it, and as the column is sorted by.
        strong: Whether it stands out.
    """

    text: str
    value: float | str | None = None
    strong: bool = False


@dataclass(frozen=True)
class Column:
    """A table's column.

    Attributes:
        key: Its name in files.
        title: Its heading; a column without one is in CSV files only.
    """

    key: str
    title: str = ""
    is_number: bool = True


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: That of its file.
        note: What a reader has to know to read it.
        folded: Whether it is a matter for the few who open it.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False

    def shown(self) -> Table:
        """The table as a reader sees it: headed columns in which something stands."""
        kept = [
            place
            for place, column in enumerate(self.columns)
            if column.title and any(row[place].text not in ("", NOTHING) for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)


@dataclass(frozen=True)
class Figure:
    """A figure; `name` is that of its files."""

    name: str
    title: str
    caption: str
    drawing: Drawing


@dataclass(frozen=True)
class Figures:
    """Figures side by side where there is room; small ones stand three in a row."""

    figures: Sequence[Figure]
    small: bool = False


@dataclass(frozen=True)
class Listing:
    """Text kept as it is, such as a configuration."""

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
    """A heading and what stands below it."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """The whole report.

    Attributes:
        headline: What was found, in a sentence or a few.
        facts: Short names and values to stand below it.
        series: The look of each group, by its label.
    """

    title: str
    headline: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    series: Mapping[str, Series]

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
    """A name for each label that is safe in any file system and unlike the others."""
    names: dict[str, str] = {}
    for label in labels:
        safe = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-")[:60] or "group"
        taken = sum(name == safe or name.startswith(f"{safe}.") for name in names.values())
        names[label] = f"{safe}.{taken + 1}" if taken else safe
    return names
