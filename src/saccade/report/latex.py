"""The page as a LaTeX document, and its tables (booktabs) as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.report.page import Block, Cell, Column, Figures, Items, Listing, Page, Table

__all__ = ["as_latex", "latex_table"]

PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[a4paper,margin=22mm]{geometry}
\usepackage{booktabs,graphicx,longtable,textcomp}
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
"""
MAX_UNBROKEN = 40
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
TEXT_COLUMN = r"lp{0.72\linewidth}"
SPECIAL = {
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


def as_latex(page: Page) -> str:
    """The whole document; it includes figures from `figures/`."""
    facts = "; ".join(f"{name}: {value}" for name, value in page.facts)
    title = rf"\title{{{_text(page.title)}}}\date{{}}\author{{}}"
    parts = [rf"\textbf{{{_text(page.headline)}}}", _text(facts)]
    for section in page.sections:
        parts += [rf"\section*{{{_text(section.title)}}}", *map(_block, section.blocks)]
    body = "\n\n".join(parts)
    return f"{PREAMBLE}{title}\n\\begin{{document}}\n\\maketitle\n\n{body}\n\n\\end{{document}}\n"


def _text(text: str) -> str:
    """Escape text for LaTeX; letters beyond its fonts are printed as their code point."""
    return "".join(SPECIAL.get(own, own if ord(own) < 0x180 else _number_of(own)) for own in text)


def _number_of(letter: str) -> str:
    """The code point, such as `U+56DB`, followed by a possible line break."""
    return rf"U+{ord(letter):04X}\allowbreak{{}}"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return _text(block)
    if isinstance(block, Items):
        items = "\n".join(rf"\item {_text(item)}" for item in block.items)
        return f"\\begin{{itemize}}\n{items}\n\\end{{itemize}}"
    if isinstance(block, Listing):
        lines = [_text(line).replace(" ", "~") for line in block.text.splitlines()]
        return "{\\footnotesize\\ttfamily\\raggedright\n" + "\\\\\n".join(lines) + "\\par}"
    if isinstance(block, Figures):
        width = 0.32 if block.small else 0.48
        return "\n".join(
            f"\\begin{{minipage}}[t]{{{width}\\textwidth}}\\raggedright\\small\n"
            f"\\includegraphics[width=\\linewidth]{{figures/{figure.name}.png}}\\\\\n"
            f"{_text(figure.caption)}\n\\end{{minipage}}\\hfill"
            for figure in block.figures
        )
    return _titled(block)


def _titled(table: Table) -> str:
    """A table in the document: scaled to the page width, or split over pages if it is long."""
    title = rf"\textbf{{{_text(table.caption)}}}"
    note = f"\n\n{{\\footnotesize {_text(table.note)}\\par}}" if table.note else ""
    if len(table.rows) > MAX_UNBROKEN:
        return f"{title}\n{{\\small\n{latex_table(table, 'longtable')}}}{note}"
    return f"{title}\n\n{FIT}{{%\n{latex_table(table)}}}{note}"


def latex_table(table: Table, environment: str = "tabular") -> str:
    """A table in booktabs style, without a float."""
    shown = table.shown()
    heads = " & ".join(rf"\textbf{{{_text(column.title)}}}" for column in shown.columns)
    rows = "\n".join(f"{' & '.join(map(_cell, row))} \\\\" for row in shown.rows)
    return (
        f"\\begin{{{environment}}}{{{_places(shown.columns)}}}\n\\toprule\n{heads} \\\\\n"
        f"\\midrule\n{rows}\n\\bottomrule\n\\end{{{environment}}}"
    )


def _places(columns: Sequence[Column]) -> str:
    """The column specification; the second column of a two-column text table wraps lines."""
    numbers = [column.is_number for column in columns]
    return TEXT_COLUMN if numbers == [False, False] else "".join("lr"[own] for own in numbers)


def _cell(cell: Cell) -> str:
    return rf"\textbf{{{_text(cell.text)}}}" if cell.strong else _text(cell.text)
