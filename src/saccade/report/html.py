"""The page as one self-contained HTML file with styles, script and figures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from string import Template

from saccade.report.inline_svg import VARIABLES, inline_svg
from saccade.report.page import (
    Block,
    Cell,
    Column,
    Figure,
    Figures,
    Items,
    Listing,
    Page,
    Section,
    Table,
)
from saccade.report.style import MARKERS, PAGE_COLORS, SERIES_COLORS

__all__ = ["as_html"]

GLYPHS = dict(zip(MARKERS, "●■◆▲▼✚✖★◀", strict=True))
NAMING_COLUMNS = {"attention", "first", "second"}


def as_html(page: Page) -> str:
    """The whole document."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_asset("page.html")).substitute(
        digest=digest,
        title=escape(page.title),
        colors=_colors(),
        style=_asset("page.css"),
        headline=escape(page.headline),
        facts="".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in page.facts
        ),
        contents="".join(
            f'<li><a href="#{section.name}">{escape(section.title)}</a></li>'
            for section in page.sections
        ),
        sections="\n".join(_section(section, page) for section in page.sections),
        script=script,
    )


def _asset(name: str) -> str:
    return (files("saccade.report") / name).read_text(encoding="utf-8")


def _colors() -> str:
    """The palette as CSS variables, with dark values for the system setting and the button."""
    tones = [*PAGE_COLORS.values(), *SERIES_COLORS]
    light = "".join(f"--{tone.name}:{tone.light};" for tone in tones)
    dark = "".join(f"--{tone.name}:{tone.dark};" for tone in tones)
    return (
        f":root{{{light}}}\n"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    )


def _section(section: Section, page: Page) -> str:
    blocks = "\n".join(_block(block, page) for block in section.blocks)
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n'
        f'<h2 id="{section.name}-title">{escape(section.title)}</h2>\n{blocks}\n</section>'
    )


def _block(block: Block, page: Page) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, Items):
        return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Listing):
        return _folded(block.title, f"<pre><code>{escape(block.text)}</code></pre>")
    if isinstance(block, Figures):
        kind = "figures small" if block.small else "figures"
        drawn = "\n".join(_figure(figure, page) for figure in block.figures)
        return f'<div class="{kind}">\n{drawn}\n</div>'
    table = _table(block.shown(), page)
    return _folded(block.caption, table) if block.folded else table


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def _figure(figure: Figure, page: Page) -> str:
    svg = inline_svg(figure.drawing.svg, name=figure.name, label=figure.caption)
    title = f"{_mark(figure.title, page)}{escape(figure.title)}"
    caption = escape(figure.caption)
    if page.has_figure_files:
        links = " ".join(
            f'<a href="figures/{figure.name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg")
        )
        caption += f' <span class="files">{links}</span>'
    return f"<figure>\n<h3>{title}</h3>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>"


def _mark(label: str, page: Page) -> str:
    """The marker of a group in its color; empty for other labels."""
    look = page.series.get(label)
    if look is None:
        return ""
    color = VARIABLES[look.color]
    return (
        f'<span class="mark" style="color:{color}" aria-hidden="true">{GLYPHS[look.marker]}</span>'
    )


def _table(table: Table, page: Page) -> str:
    heads = "".join(_head(column) for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(_cells(table.columns, row, page))}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">\n'
        f'<table class="sortable"><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n{note}"
    )


def _head(column: Column) -> str:
    kind = ' class="number"' if column.is_number else ""
    return f'<th scope="col"{kind}>{escape(column.title)}</th>'


def _cells(columns: Iterable[Column], row: Iterable[Cell], page: Page) -> Iterator[str]:
    for place, (column, cell) in enumerate(zip(columns, row, strict=True)):
        text = escape(cell.text)
        if column.key in NAMING_COLUMNS:
            text = f'<span class="name">{_mark(cell.text, page)}{text}</span>'
        text = f"<strong>{text}</strong>" if cell.strong else text
        value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
        kind = ' class="number"' if column.is_number else ""
        tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
        yield f"<{tag}{scope}{kind}{value}>{text}</{tag}>"
