"""Build the site: collect the pages, let zensical render them, add llms.txt.

python docs/make_site.py                 build build/site
python docs/make_site.py --out FOLDER    build it elsewhere

The pages keep their places in the repository, so that links between them, and to results and
sources, are the same on the site. Files that a page links to are copied with it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


def navigation(root: Path = ROOT) -> list[tuple[str, list[Path]]]:
    """The parts of the navigation, each with its pages."""
    entries = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return [(name, list(_pages(inner))) for entry in entries for name, inner in entry.items()]


def _pages(entry: str | list[object] | dict[str, object]) -> Iterator[Path]:
    if isinstance(entry, str):
        yield Path(entry)
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from _pages(inner)  # type: ignore[arg-type]


def links(text: str) -> list[tuple[str, str]]:
    """The relative links outside of code blocks: target and anchor."""
    return [(link[2], link[3] or "") for link in LINK.finditer(FENCE.sub("", text))]


def collect(root: Path, folder: Path) -> list[Path]:
    """Copy the pages, and what they link to, to a folder; return the pages."""
    waiting = [page for _, pages in navigation(root) for page in pages]
    pages: list[Path] = []
    while waiting:
        page = waiting.pop(0)
        if page in pages:
            continue
        pages.append(page)
        text = (root / page).read_text(encoding="utf-8")
        copy = folder / page
        copy.parent.mkdir(parents=True, exist_ok=True)
        for target, _ in links(text):
            linked = Path(os.path.normpath(page.parent / target))
            if (root / linked).is_dir():
                waiting.append(_list_folder(root, folder, linked))
            elif linked.suffix == ".md":
                waiting.append(linked)
            else:
                (folder / linked).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / linked, folder / linked)
        copy.write_text(_to_files(text, root, page), encoding="utf-8")
    return pages


def _list_folder(root: Path, folder: Path, linked: Path) -> Path:
    """The page of a folder: its README."""
    if not (root / linked / "README.md").exists():
        sys.exit(f"{linked}: a page links to this folder, which has no README.md")
    return linked / "README.md"


def _to_files(text: str, root: Path, page: Path) -> str:
    """The text with links to folders made links to their READMEs."""

    def replaced(match: re.Match[str]) -> str:
        if not (root / page.parent / match[2]).is_dir():
            return match[0]
        return f"{match[1]}{match[2].rstrip('/')}/README.md{match[3] or ''})"

    return LINK.sub(replaced, text)


def title_and_summary(text: str) -> tuple[str, str]:
    """The first heading of a page and the first sentence below it."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    title = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    paragraphs = re.findall(r"^(?:[A-Z`*][^\n]*\n?)+", text.partition("\n")[2], flags=re.MULTILINE)
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    sentence = re.match(r".*?[.:](?=\s|$)", first)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence[0] if sentence else first)
    return (title[1] if title else "saccade"), plain.rstrip(":")


def llms_text(root: Path = ROOT) -> str:
    """The list of pages for language models (llmstxt.org)."""
    description = yaml.safe_load((root / "mkdocs.yml").read_text("utf-8"))["site_description"]
    parts = [f"# saccade\n\n> {description}"]
    for name, pages in navigation(root):
        parts.append(f"\n## {name}\n")
        for page in pages:
            title, summary = title_and_summary((root / page).read_text(encoding="utf-8"))
            parts.append(f"- [{title}]({page}): {summary}")
    return "\n".join(parts) + "\n"


def build(out: Path, root: Path = ROOT) -> None:
    """Build the site in a folder that is replaced."""
    settings = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"docs_dir": "pages", "site_dir": "site"}
    program = Path(sys.executable).parent / "zensical"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pages = collect(root, work / "pages")
        for sheet in settings.get("extra_css", ()):
            shutil.copyfile(root / sheet, work / "pages" / sheet)
        config = work / "mkdocs.yml"
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        subprocess.run(
            [program, "build", "--clean", "--strict", "-f", config], check=True, cwd=work
        )
        for page in pages:
            shutil.copyfile(work / "pages" / page, work / "site" / page)
        (work / "site" / "llms.txt").write_text(llms_text(root), encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(work / "site", out)


def main() -> None:
    """Build the site and say where it is."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    arguments = parser.parse_args()
    build(arguments.out.absolute())
    print(arguments.out / "index.html")


if __name__ == "__main__":
    main()
