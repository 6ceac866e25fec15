"""The page as a LaTeX document, and its tables (booktabs) as files to take into a paper."""

from __future__ import annotations

from saccade.report.page import Block, Cell, Figures, Items, Listing, Page, Table

__all__ = ["as_latex", "latex_table"]

PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[a4paper,margin=22mm]{geometry}
\usepackage{booktabs,graphicx,textcomp}
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
"""
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
    """The whole document; figures are read from `figures/`."""
    facts = "; ".join(f"{name}: {value}" for name, value in page.facts)
    title = rf"\title{{{_text(page.title)}}}\date{{}}\author{{}}"
    parts = [rf"\textbf{{{_text(page.headline)}}}", _text(facts)]
    for section in page.sections:
        parts += [rf"\section*{{{_text(section.title)}}}", *map(_block, section.blocks)]
    body = "\n\n".join(parts)
    return f"{PREAMBLE}{title}\n\\begin{{document}}\n\\maketitle\n\n{body}\n\n\\end{{document}}\n"


def _text(text: str) -> str:
    """Plain text that LaTeX prints as it is; what its fonts do not have becomes a question mark."""
    return "".join(SPECIAL.get(letter, letter if ord(letter) < 0x180 else "?") for letter in text)


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
    return latex_table(block)


def latex_table(table: Table) -> str:
    """A table in booktabs' manner, made as narrow as the page."""
    shown = table.shown()
    heads = " & ".join(rf"\textbf{{{_text(column.title)}}}" for column in shown.columns)
    rows = "\n".join(f"{' & '.join(map(_cell, row))} \\\\" for row in shown.rows)
    places = "".join("r" if column.is_number else "l" for column in shown.columns)
    note = f"\\\\[4pt]\n{{\\footnotesize {_text(shown.note)}}}" if shown.note else ""
    return (
        f"\\begin{{center}}\n\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}"
        f"{{!}}{{%\n\\begin{{tabular}}{{{places}}}\n\\toprule\n{heads} \\\\\n\\midrule\n{rows}\n"
        f"\\bottomrule\n\\end{{tabular}}}}{note}\n\\end{{center}}"
    )


def _cell(cell: Cell) -> str:
    return rf"\textbf{{{_text(cell.text)}}}" if cell.strong else _text(cell.text)
