"""The snippets of docs/integrations.md and of timm in the README run; their comments are true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "integrations.md", ROOT / "README.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
STARTS = "('{["
COMMENTED = re.compile(r"^(\S.*?)  # (\S.*)$", flags=re.MULTILINE)


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_run(code):
    names = {}
    exec(compile(code, PAGE.name, "exec"), names)
    for expression, said in COMMENTED.findall(code):
        if said[0] in STARTS:
            value = re.match(r"\(.*?\)|'.*?'|\{.*?\}|\[.*?\]", said)[0]
            found = eval(expression, names)
            assert (list(found) if value[0] == "[" else found) == eval(value)


def test_the_snippet_of_the_readme_runs():
    (code,) = re.findall(r"^```py\n(.*?)^```", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(code, README.name, "exec"), names)
    assert type(names["model"].blocks[0].attn).__module__ != "timm.layers.attention"


def test_there_are_snippets_with_comments():
    said = [s for code in SNIPPETS for _, s in COMMENTED.findall(code)]
    assert len(SNIPPETS) == 4
    assert sum(s[0] in STARTS for s in said) == 4
