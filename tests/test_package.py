"""The package as a whole: cheap to import, nothing hidden, rooms as documented."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import saccade
from saccade.cli.doctor import EXTRAS

ROOT = Path(__file__).parent.parent


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_is_cheap_and_without_torch():
    code = "import time; t = time.process_time(); import saccade, sys; "
    code += "print(time.process_time() - t, 'torch' in sys.modules)"
    seconds, torch_loaded = min(run(code).split() for _ in range(3))
    assert torch_loaded == "False"
    assert float(seconds) < 0.2


def test_all_is_explicit_and_complete():
    assert dir(saccade) == sorted(saccade.__all__)
    for name in saccade.__all__:
        assert getattr(saccade, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = saccade.no_such_name


@pytest.mark.parametrize("room", ["data", "layers", "models"])
def test_lazy_rooms_hold_what_they_name(room: str):
    package = import_module(f"saccade.{room}")
    assert dir(package) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"'saccade.{room}' has no attribute 'no_such_name'"):
        _ = package.no_such_name


def test_rooms_are_those_of_the_architecture_page():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    block = page.split("```")[1]
    named = set(re.findall(r"^  (\w+)/", block, flags=re.MULTILINE))
    present = {
        path.name
        for path in (ROOT / "src" / "saccade").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert named == present


@pytest.mark.slow
def test_the_pinned_versions_suit_every_extra():
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "-c", "constraints.txt"]
    done = subprocess.run(
        [*pip, "-e", ".[all,dev]"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "conflicting dependencies" not in done.stderr, done.stderr
    if done.returncode != 0:
        pytest.skip(f"no package index can be reached: {done.stderr.splitlines()[-1]}")
    assert "Would install" in done.stdout


IMPORTED_AS = {"mlflow-skinny": "mlflow"}
IMPORTED_BY_OTHERS = {"onnxscript", "psycopg"}
"""torch.onnx and SQLAlchemy import these."""
TOOLS = {"docs"}
"""Extras for work on a clone, whose packages are commands too."""


def extras() -> dict[str, list[str]]:
    """The packages of every extra that a user installs, by import name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"]
    packages = {name: [re.split(r"[>=;\[ ]", word)[0] for word in listed[name]] for name in listed}
    return {
        name: [IMPORTED_AS.get(word, word.replace("-", "_")) for word in words]
        for name, words in packages.items()
        if "saccade" not in words and name not in TOOLS
    }


def test_every_extra_installs_what_is_used():
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    pages = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    imported = set(re.findall(r"^\s*(?:from|import) (?:torch\.utils\.)?(\w+)", code, re.MULTILINE))
    imported |= set(re.findall(r"^(?:from|import) (\w+)", pages, re.MULTILINE))
    for name, packages in extras().items():
        assert packages, name
        for package in packages:
            assert package in imported | IMPORTED_BY_OTHERS, f"nothing imports {package} ({name})"


def test_doctor_and_all_know_every_extra():
    assert {name: list(modules) for name, modules in EXTRAS.items()} == extras()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [everything] = project["optional-dependencies"]["all"]
    assert re.findall(r"\w+", everything)[1:] == list(EXTRAS)


def test_no_file_is_too_long_to_read():
    for path in (ROOT / "src").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path
