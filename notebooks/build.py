"""Make the notebooks and the pages of the lessons from the sources beside this file.

A source is a Python file in jupytext's percent format. This script executes it in a kernel and
writes `notebooks/<name>.ipynb` with its outputs, and a page with its pictures below `docs/`.

    python notebooks/build.py              all sources that have changed
    python notebooks/build.py lesson_04    sources whose names begin so, changed or not
    python notebooks/build.py --pages      the pages alone, from the notebooks as they are
    python notebooks/build.py --check      execute nothing; fail if a file is out of date

Cells may have tags: `picture` draws, `answer` belongs to the answer of an exercise. `alt` describes
the picture of a cell.
"""

import argparse
import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
TIMEOUT_S = 600

MECHANISMS = (
    "vit",
    "taylor",
    "taylorshift",
    "performer_favor",
    "performer_relu",
    "performer_exp",
    "performer_gelu_elu",
    "performer_ftheta",
)
"""The notebooks that are no lessons, in the order in which they are read."""

Notebook = Any
"""nbformat has no types."""


def sources() -> list[Path]:
    """The sources in the order of reading: the lessons by number, then the mechanisms."""
    found = sorted(path for path in FOLDER.glob("*.py") if path.stem != "build")
    return sorted(
        found, key=lambda path: MECHANISMS.index(path.stem) + 1 if path.stem in MECHANISMS else 0
    )


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def relink(text: str, before: Path, after: Path, names: dict[Path, Path]) -> str:
    """Links that are relative to a folder as links that are relative to another.

    Args:
        text: Markdown.
        before: The folder of the text.
        after: The folder to which the text goes.
        names: Files that have another name there.
    """

    def moved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(before / match[1]))
        return f"]({os.path.relpath(names.get(target, target), after)}"

    return LINK.sub(moved, text)


def read_source(path: Path) -> Notebook:
    """The notebook of a source, without outputs. Its links lead from the folder of notebooks."""
    notebook = jupytext.read(path, fmt="py:percent")
    made = {page_path(other.stem): other.with_suffix(".ipynb") for other in sources()}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, page_path(path.stem).parent, FOLDER, made)
    install = nbformat.v4.new_markdown_cell(
        "*This notebook needs saccade (`pip install .` in a clone) and a CPU. "
        f"It is generated from `notebooks/{path.name}`.*"
    )
    notebook.cells.insert(1, install)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: Notebook) -> Notebook:
    """Run all cells in an empty folder; an error or a warning stops the build."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": folder}}
        )
        client.execute(env=os.environ | {"PYTHONWARNINGS": "ignore:IProgress"})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                sys.exit(f"a cell wrote to stderr:\n{cell.source}\n{output.text}")
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def same_cells(left: Notebook, right: Notebook) -> bool:
    """True if two notebooks have the same sources and metadata; outputs may differ."""

    def inputs(notebook: Notebook) -> list[tuple[str, str, dict[str, Any]]]:
        return [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]

    return inputs(left) == inputs(right)


def page_path(stem: str) -> Path:
    """The page of a source: `docs/lessons/01-patches.md` or `docs/mechanisms/taylor.md`."""
    is_lesson = stem.startswith("lesson_")
    folder = "lessons" if is_lesson else "mechanisms"
    return ROOT / "docs" / folder / f"{stem.removeprefix('lesson_').replace('_', '-')}.md"


def title(notebook: Notebook) -> str:
    """The first heading."""
    return notebook.cells[0].source.splitlines()[0].removeprefix("# ")


def render(stem: str, notebook: Notebook) -> tuple[str, dict[str, bytes]]:
    """The text of a page, and its pictures by file name."""
    page = page_path(stem)
    pictures: dict[str, bytes] = {}
    notice = f"<!-- Generated from notebooks/{stem}.py by notebooks/build.py. Do not edit. -->"
    parts = [notice, *_blocks(notebook.cells[0], page, pictures)]
    cells = notebook.cells[2:]
    for is_answer, group in groupby(
        cells, key=lambda cell: "answer" in cell.metadata.get("tags", ())
    ):
        blocks = [block for cell in group for block in _blocks(cell, page, pictures)]
        if is_answer:
            blocks = ['<details markdown="1"><summary>Answer</summary>', *blocks, "</details>"]
        parts += blocks
    return "\n\n".join(parts) + "\n", pictures


def _blocks(cell: Notebook, page: Path, pictures: dict[str, bytes]) -> Iterable[str]:
    if cell.cell_type == "markdown":
        pages = {path.with_suffix(".ipynb"): page_path(path.stem) for path in sources()}
        yield relink(cell.source, FOLDER, page.parent, pages)
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        if output.output_type == "stream":
            yield f"```text\n{output.text.rstrip()}\n```"
        elif "image/png" in output.get("data", {}):
            name = f"{page.stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode(output.data["image/png"])
            yield f"![{cell.metadata['alt']}](figures/{name})"


def with_neighbours(text: str, stem: str, titles: dict[str, str]) -> str:
    """A lesson with links to the one before and the one after."""
    stems = [name for name in titles if name.startswith("lesson_") == stem.startswith("lesson_")]
    place = stems.index(stem)
    links = [
        f"{word}: [{titles[name]}]({page_path(name).name})"
        for word, name in (
            ("Before", stems[place - 1] if place else None),
            ("Next", stems[place + 1] if place + 1 < len(stems) else None),
        )
        if name is not None
    ]
    links.append(f"[This page as a notebook](../../notebooks/{stem}.ipynb)")
    return f"{text}\n---\n\n{' · '.join(links)}\n"


def page_files(notebooks: dict[str, Notebook]) -> dict[Path, bytes]:
    """All pages and pictures that the notebooks give."""
    titles = {stem: title(notebook) for stem, notebook in notebooks.items()}
    files: dict[Path, bytes] = {}
    for stem, notebook in notebooks.items():
        page = page_path(stem)
        text, pictures = render(stem, notebook)
        files[page] = with_neighbours(text, stem, titles).encode()
        files |= {page.parent / "figures" / name: data for name, data in pictures.items()}
    return files


def differing(files: dict[Path, bytes]) -> list[Path]:
    """The files that are missing or have another content."""
    return [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]


def left_over(files: dict[Path, bytes]) -> list[Path]:
    """Pages and pictures in the generated folders that no notebook gives."""
    folders = [ROOT / "docs" / name for name in ("lessons", "mechanisms")]
    found = [path for folder in folders for path in folder.glob("**/*.*")]
    return [path for path in found if path not in files and path.name != "index.md"]


def stored(path: Path) -> Notebook | None:
    """The notebook that belongs to a source; None if it has not been made."""
    made = path.with_suffix(".ipynb")
    return nbformat.read(made, as_version=4) if made.exists() else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Execute what has changed and write the files, or check them."""
    parser = argparse.ArgumentParser(description="Make the notebooks and the pages of the lessons.")
    parser.add_argument("names", nargs="*", help="beginnings of the names of sources")
    parser.add_argument("--pages", action="store_true", help="write the pages, execute nothing")
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date")
    options = parser.parse_args(arguments)
    notebooks: dict[str, Notebook] = {}
    for path in sources():
        fresh, old = read_source(path), stored(path)
        is_wanted = any(path.stem.startswith(name) for name in options.names)
        is_old = old is None or not same_cells(fresh, old)
        if options.check and is_old:
            sys.exit(f"{path}: the notebook is out of date; run python notebooks/build.py")
        if is_wanted or (is_old and not options.names and not options.pages):
            print(f"executing {path.name}", flush=True)
            old = execute(fresh)
            nbformat.write(old, path.with_suffix(".ipynb"))
        if old is not None:
            notebooks[path.stem] = old
    files = page_files(notebooks)
    changed, unused = differing(files), left_over(files)
    if options.check:
        if changed or unused:
            sys.exit(f"{(changed + unused)[0]}: out of date; run python notebooks/build.py")
        return
    for path in unused:
        path.unlink()
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[path])


if __name__ == "__main__":
    main()
