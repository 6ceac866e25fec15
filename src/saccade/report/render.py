"""Render a page as HTML, Markdown, LaTeX and CSV with the templates in `templates/`."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from saccade.report.page import Block, Column, Figure, Figures, Items, Listing, Page, Table
from saccade.report.style import MARKERS, PAGE_COLORS, SERIES_COLORS

__all__ = ["as_csv", "as_html", "as_latex", "as_markdown", "inline_svg", "latex_table"]

GLYPHS = dict(zip(MARKERS, "●■◆▲▼✚✖★◀", strict=True))
NAMING_COLUMNS = {"attention", "first", "second"}
"""Columns of names, which show the marker of their group."""

MAX_UNBROKEN = 40
"""LaTeX tables with more rows are split over pages."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t")
MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
LIST_START = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s)")
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",
    "−": r"\ensuremath{-}",
    "–": "--",
    "\u00a0": "~",
    "…": r"\ldots{}",
}
LATEX_DELIMITERS: Mapping[str, Any] = {
    "block_start_string": "((*",
    "block_end_string": "*))",
    "variable_start_string": "(((",
    "variable_end_string": ")))",
    "comment_start_string": "((#",
    "comment_end_string": "#))",
}


def as_html(page: Page) -> str:
    """The page as one HTML file with its styles, script and figures."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _render(
        "report.html",
        page=page,
        colors=Markup(_colors()),
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_digest=digest,
        glyphs=GLYPHS,
        variables=VARIABLES,
        naming_columns=NAMING_COLUMNS,
    )


def as_markdown(page: Page) -> str:
    """The page as Markdown, with links to its figures."""
    return _render("report.md", page=page)


def as_latex(page: Page) -> str:
    """The page as a LaTeX document; it includes figures from `figures/`."""
    return _render("report.tex", page=page, max_unbroken=MAX_UNBROKEN)


def latex_table(table: Table) -> str:
    """A table in booktabs style, without a float."""
    macros: Any = _environment("tex").get_template("table.tex").module
    return str(macros.tabular(table, "tabular"))


def as_csv(table: Table) -> str:
    """A table with a header line and unrounded numbers; an empty field is an unknown value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_csv_field(column.key) for column in table.columns)
    for row in table.rows:
        writer.writerow(_csv_field(cell.value) for cell in row)
    return text.getvalue()


def _render(template: str, **values: object) -> str:
    suffix = template.rpartition(".")[2]
    return _environment(suffix).get_template(template).render(values)


@cache
def _environment(suffix: str) -> Environment:
    """The environment of templates with this suffix; HTML is escaped automatically."""
    delimiters = LATEX_DELIMITERS if suffix == "tex" else {}
    environment = Environment(
        loader=PackageLoader("saccade.report"),
        autoescape=suffix == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **delimiters,
    )
    environment.filters |= {
        "kind": _kind,
        "svg": _svg,
        "md": _escape_markdown,
        "tex": _escape_latex,
        "column_spec": _latex_column_spec,
    }
    return environment


def _asset(name: str) -> str:
    return (files("saccade.report") / "templates" / name).read_text(encoding="utf-8")


def _kind(block: Block) -> str:
    """The name of a block's type, by which a template chooses its markup."""
    if isinstance(block, str):
        return "paragraph"
    names: dict[type, str] = {
        Items: "items",
        Listing: "listing",
        Figures: "figures",
        Table: "table",
    }
    return names[type(block)]


def _svg(figure: Figure) -> Markup:
    return Markup(inline_svg(figure.drawing.svg, name=figure.name, label=figure.caption))


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


def _escape_markdown(text: str) -> str:
    """Escape text so that it contains no markup, HTML or list."""
    return LIST_START.sub(r"\1\\\2", MARKDOWN_SPECIAL.sub(r"\\\1", text))


def _escape_latex(text: str) -> str:
    """Escape text for LaTeX; letters beyond its fonts are printed as their code point."""
    return "".join(
        LATEX_SPECIAL.get(letter)
        or (letter if ord(letter) < 0x180 else rf"U+{ord(letter):04X}\allowbreak{{}}")
        for letter in text
    )


def _latex_column_spec(columns: Sequence[Column]) -> str:
    """The column specification; the second column of a two-column text table wraps lines."""
    numbers = [column.is_number for column in columns]
    return r"lp{0.72\linewidth}" if numbers == [False, False] else "".join("lr"[n] for n in numbers)


def _csv_field(value: float | str | None) -> float | str | None:
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula."""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value


SVG = "http://www.w3.org/2000/svg"
XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
FONT = re.compile(r"font: (?:\w+ )*([\d.]+)px [^;]*")
REFERENCE = re.compile(r"#([^)]+)")
VARIABLES = {tone.light: f"var(--{tone.name})" for tone in (*PAGE_COLORS.values(), *SERIES_COLORS)}


def inline_svg(text: str, *, name: str, label: str) -> str:
    """Convert an SVG file to an element of the page.

    Colors of the palette become CSS variables, so that they follow the light or dark theme. Ids
    that are referenced get the figure's name as a prefix. Other ids are removed.
    """
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)
    for unwanted in ("metadata", "defs"):
        found = root.find(f"{{{SVG}}}{unwanted}")
        if found is not None:
            root.remove(found)
    used = {
        reference
        for element in root.iter()
        for value in (element.get(XLINK_HREF, ""), element.get("clip-path", ""))
        for reference in REFERENCE.findall(value)
        if not value.startswith("data:")
    }
    for element in root.iter():
        _rewrite(element, name, used)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode").replace("\n", "")


def _rewrite(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Rename or remove the id, update references and colors, and remove indentation."""
    if not (element.text or "").strip():
        element.text = None
    if not (element.tail or "").strip():
        element.tail = None
    old = element.attrib.pop("id", None)
    if old in used:
        element.set("id", f"{name}-{old}")
    if link := element.attrib.pop(XLINK_HREF, None):
        element.set("href", link if link.startswith("data:") else f"#{name}-{link[1:]}")
    if clip := element.get("clip-path"):
        element.set("clip-path", clip.replace("#", f"#{name}-"))
    if style := element.get("style"):
        style = COLOR.sub(lambda found: VARIABLES.get(found[0].lower(), found[0]), style)
        element.set("style", FONT.sub(r"font-size: \1px", style))
