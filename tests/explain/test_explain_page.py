"""docs/explain.md: its snippet runs, and its options are those of the command."""

import re

from tests.cli.conftest import Saccade
from tests.test_docs import ROOT, rows, snippets

PAGE = ROOT / "docs" / "explain.md"


def test_the_snippet_runs() -> None:
    found = snippets(PAGE)
    assert found
    for name, code in found:
        exec(compile(code, name, "exec"), {"__name__": name})


def test_options_match_the_command(saccade: Saccade) -> None:
    documented = set(re.findall(r"--[a-z]+", " ".join(rows(PAGE, "option"))))
    known = set(re.findall(r"--[a-z]+", saccade("explain", "--help")[1]))
    assert documented | {"--out", "--help"} == known


def test_figures_exist_and_are_small() -> None:
    figures = [
        PAGE.parent / path for path in re.findall(r"\]\(([^)]+\.(?:png|svg))\)", PAGE.read_text())
    ]
    assert figures
    for figure in figures:
        assert 10_000 < figure.stat().st_size < 300_000, figure
