"""The page as Markdown, with links to its figures."""

from __future__ import annotations

import re

from saccade.report.page import Block, Cell, Figures, Items, Listing, Page, Table

__all__ = ["as_markdown"]

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
LIST_START = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s)")


def as_markdown(page: Page) -> str:
    """The whole document."""
    facts = "; ".join(f"{name}: {value}" for name, value in page.facts)
    parts = [f"# {_text(page.title)}", f"**{_text(page.headline)}**", _text(facts)]
    for section in page.sections:
        parts += [f"## {_text(section.title)}", *(_block(block) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Escape text so that it contains no markup, HTML or list."""
    return LIST_START.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", text))


def _block(block: Block) -> str:
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, Items):
        return "\n".join(f"- {_text(item)}" for item in block.items)
    if isinstance(block, Figures):
        return "\n\n".join(
            f"![{_text(own.title)}](figures/{own.name}.png)\n\n{_text(own.caption)}"
            for own in block.figures
        )
    if isinstance(block, Listing):
        return f"{_text(block.title)}:\n\n{_indented(block.text)}"
    return _table(block.shown())


def _indented(text: str) -> str:
    """An indented code block, which its text cannot close as it could close a fenced one."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _table(table: Table) -> str:
    heads = [_text(column.title) for column in table.columns]
    rules = ["---:" if column.is_number else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))
    note = f"\n\n{_text(table.note)}" if table.note else ""
    return f"**{_text(table.caption)}**\n\n{lines}{note}"


def _cell(cell: Cell) -> str:
    return f"**{_text(cell.text)}**" if cell.strong else _text(cell.text)
