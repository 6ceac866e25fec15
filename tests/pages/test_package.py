"""What a package index shows, and what `make dist` tries."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?!https?:|#)")


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A script as a module. hatchling is there only when a package is built."""
    stub = types.ModuleType("hatchling.metadata.plugin.interface")
    stub.MetadataHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_has_no_relative_link(monkeypatch):
    description = loaded(ROOT / "hatch_build.py", monkeypatch).description
    assert RELATIVE.search(README)
    plain = description(README, None)
    assert not RELATIVE.search(plain)
    assert "![" not in plain
    assert "- Compare attentions fairly" in plain


def test_with_an_address_links_and_pictures_are_absolute(monkeypatch):
    description = loaded(ROOT / "hatch_build.py", monkeypatch).description
    files = "https://example.org/saccade/raw/main"
    absolute = description(README, files)
    assert not RELATIVE.search(absolute)
    assert f"]({files}/docs/figures/readme.png)" in absolute
    targets = re.findall(rf"\]\({re.escape(files)}/([^)#]+)", absolute)
    assert len(targets) > 15
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_quick_start_is_that_of_the_readme(monkeypatch):
    snippets, commands = loaded(ROOT / "packaging" / "dist.py", monkeypatch).quick_start(README)
    assert len(snippets) == 2
    assert [command.split()[1] for command in commands] == [
        "evaluate",
        "train",
        "evaluate",
        "explain",
        "compare",
        "report",
        "export",
        "serve",
    ]


def test_the_classifiers_begin_with_the_oldest_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if ":: 3." in c]
    assert project["requires-python"] == f">={versions[0]}"


@pytest.mark.slow
def test_the_package_is_built_installed_and_tried():
    """`make dist`, with this Python."""
    command = [sys.executable, str(ROOT / "packaging" / "dist.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE_S)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
