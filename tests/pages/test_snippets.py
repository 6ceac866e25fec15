"""The Python snippets of the guides and of pages that no other test reads run as they stand."""

from pathlib import Path

import pytest

from tests.test_docs import run_snippets, snippets

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


def test_the_snippets_of_guides_and_reference_run(tmp_path):
    found = snippets(*GUIDES, ROOT / "docs" / "reference" / "from-scratch.md")
    assert len(found) >= 5
    result = run_snippets(found, tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_snippet_of_the_data_page_runs_on_digits(tmp_path):
    """With digits in place of CIFAR-10, which a machine may not have."""
    ((name, code),) = snippets(ROOT / "docs" / "data.md")
    assert '"cifar10"' in code
    result = run_snippets([(name, code.replace('"cifar10"', '"digits"'))], tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_snippet_of_the_compare_page_runs(tmp_path):
    result = run_snippets(snippets(ROOT / "docs" / "compare.md"), tmp_path)
    assert result.returncode == 0, result.stderr
