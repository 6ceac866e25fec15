"""The pages are true: their snippets run, and their tables are the registry's."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.config import differences, load_config
from saccade.layers import ATTENTIONS, list_attentions
from saccade.ops.taylor import memory_threshold, speed_threshold
from tests.archives import unpacked
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "attention.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

RUN_ALL = """
import json, sys
for name, code in json.load(sys.stdin):
    exec(compile(code, name, "exec"), {"__name__": name})
"""


def snippets(*pages: Path) -> list[tuple[str, str]]:
    return [
        (f"{page.name}, snippet {number}", code)
        for page in pages
        for number, code in enumerate(SNIPPET.findall(page.read_text()), 1)
    ]


def run_snippets(found: list[tuple[str, str]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run each in a namespace of its own, all in one process, which pays for torch once."""
    command = [sys.executable, "-c", RUN_ALL]
    return subprocess.run(
        command,
        input=json.dumps(found),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def rows(page: Path, column: str) -> dict[str, list[str]]:
    """The rows of the table whose first header is `column`, by their first cell."""
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {column} |"))
    table = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        assert first not in table, f"{first} has two rows"
        table[first] = rest
    return table


def test_snippets_run(tmp_path):
    found = snippets(PAGE, ROOT / "README.md")
    assert len(found) >= 3
    result = run_snippets(found, tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_broken_snippet_is_caught_and_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\ntext\n```python\nx + 1\n```\n")
    result = run_snippets(snippets(page), tmp_path)
    assert result.returncode != 0  # the second does not see the x of the first
    assert 'File "page.md, snippet 2", line 1' in result.stderr


@pytest.fixture
def write_table(monkeypatch):
    """docs/attention_table.py, to be called with the words of its command line."""
    script = ROOT / "docs" / "attention_table.py"

    def call(*words):
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, words)])
        runpy.run_path(str(script), run_name="__main__")

    return call


def test_the_table_of_attentions_is_the_registrys(write_table):
    write_table("--check")
    table = rows(PAGE, "attention")
    assert sorted(name.strip("`") for name in table) == list_attentions()
    for name, (*cells, options) in table.items():
        entry = ATTENTIONS[name.strip("`")]
        assert cells == [entry.weight, entry.cost, entry.kind, entry.length, entry.rows]
        assert tuple(re.findall(r"`(\w+)`", options)) == entry.options


def test_a_table_that_is_not_the_registrys_is_told(write_table, tmp_path):
    page = tmp_path / "attention.md"
    page.write_text(PAGE.read_text().replace("| `taylor` |", "| `tailor` |"))
    with pytest.raises(SystemExit, match="not the registry's table"):
        write_table("--page", page, "--check")
    write_table("--page", page)
    assert page.read_text() == PAGE.read_text()


def test_every_option_is_explained():
    options = {option for name in ATTENTIONS for option in ATTENTIONS[name].options}
    assert {name.strip("`") for name in rows(PAGE, "option")} == options


@pytest.mark.parametrize("symmetric", [False, True], ids=["paper", "symmetric"])
@pytest.mark.parametrize("threshold", [speed_threshold, memory_threshold])
def test_table_of_thresholds(threshold, symmetric):
    table = rows(ROOT / "src" / "saccade" / "ops" / "taylor" / "README.md", "d")
    name = "N0" if threshold is speed_threshold else "N1"
    call = "symmetric=True" if symmetric else f"{threshold.__name__}(d)"
    expected = [str(threshold(d, symmetric=symmetric)) for d in (8, 16, 32, 64, 128)]
    assert table[f"{name}, `{call}`"] == expected


def test_the_explained_run_is_that_of_the_command():
    page = (ROOT / "docs" / "explain.md").read_text()
    command = re.search(r"^saccade train (.*?) --out", page, flags=re.DOTALL | re.MULTILINE)
    recipe, *overrides = command[1].replace("\\\n", "").split()
    run = unpacked("explain/explain_cifar_h200_202611.tar.gz") / "explain_cifar_h200_202611"
    trained = load_config(run / "config.yaml")
    assert differences(trained, load_config(recipe, overrides), ignored={"data.root"}) == []
    accuracy = json.loads((run / "summary.json").read_text())["test_accuracy"]
    assert f"{100 * accuracy:.2f} % of the test set right" in page


LINK = re.compile(r"\]\(([^)#]+)")


def test_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]
    links = [(page, link) for page in pages for link in LINK.findall(page.read_text())]
    local = [(page, link) for page, link in links if "://" not in link]
    assert len(local) > 10
    assert [(page.name, link) for page, link in local if not (page.parent / link).exists()] == []


PLACES = ("", "src", "src/saccade", "tests")
FILE = re.compile(r"`([\w./-]+\.(?:py|yaml|css|js))`")
MADE = ("hedgehog.py", "my-images.yaml", "best.yaml", "base.yaml", "config.yaml")
"""Files that commands and the steps of CONTRIBUTING.md make."""


def named_files(page: Path) -> list[str]:
    """The files of this repository that a page names as code; READMEs name those beside them."""
    found = (name for name in FILE.findall(page.read_text()) if not name.endswith(MADE))
    return [name for name in found if "/" in name or page.is_relative_to(ROOT / "src")]


def exists(name: str, page: Path) -> bool:
    """True for a path below a folder of `PLACES`, or below the folder of a README."""
    folders = [*(ROOT / place for place in PLACES), page.parent, page.parent / "triton"]
    return any((folder / name).exists() for folder in folders)


def test_the_files_that_pages_name_exist():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("src/**/README.md")]
    pages = [page for page in pages if page.name != "log.md"]
    named = [(page, name) for page in pages for name in named_files(page)]
    assert len(named) > 100
    assert [(page.name, name) for page, name in named if not exists(name, page)] == []


def test_a_file_that_does_not_exist_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`layers/cores.py` and `layers/scores.py`")
    assert [name for name in named_files(page) if not exists(name, page)] == ["layers/scores.py"]
