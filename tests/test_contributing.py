"""The six steps of CONTRIBUTING.md, executed as they are written in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEP = re.compile(r"<!-- (.+?) -->\n```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
COPIED = ("src", "tests", "docs", "notebooks", "packaging", "benchmarks", "results", "examples")
PATIENCE_S = 3600
EDITS = ("create", "append to", "add to")
SHORT = {
    "python -m pytest -q tests/ops tests/layers tests/bench -k hedgehog": (
        "python -m pytest -q tests/ops/test_accuracy.py tests/layers/test_attention.py -k "
        "'hedgehog and (fast_path or equation or names) and not compiles'"
    ),
    "make check && make test": (
        "ruff format --check src tests && ruff check src/saccade/layers src/saccade/ops"
    ),
}
"""What takes minutes, and what the default suite does instead; `make test-slow` runs all of it."""


@dataclass(frozen=True)
class Step:
    """A block of the page: what is to be done with it, where, and its text."""

    verb: str
    place: str
    text: str


def steps() -> list[Step]:
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Set up")[0]
    found = [(*told.partition(":")[::2], text) for told, _, text in STEP.findall(page)]
    return [Step(verb, place.strip(), text) for verb, place, text in found]


def apply(step: Step, tree: Path) -> None:
    """Edit the tree as a block of the page says."""
    if step.verb == "create":
        assert not (tree / step.place).exists()
        (tree / step.place).write_text(step.text)
    elif step.verb == "append to":
        old = (tree / step.place).read_text()
        gap = "\n\n" if step.text.startswith(("@", "def ", "class ")) else ""
        (tree / step.place).write_text(old + gap + step.text)
    else:
        assert step.verb == "add to"
        name, _, heading = step.place.partition(", below: ")
        before, found, after = (tree / name).read_text().partition(f"\n{heading}\n\n")
        assert found
        (tree / name).write_text(before + found + step.text + after)


def run(command: str, tree: Path) -> subprocess.CompletedProcess[str]:
    """A line for the shell, with the tools that these tests run with, on the tree's own code."""
    tools = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tree / "src"),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    return subprocess.run(
        ["bash", "-c", command],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def check_and_test(tree: Path) -> str:
    """`make check && make test`, in the environment that is there instead of a new one."""
    makefile = (tree / "Makefile").read_text()
    commands = []
    for target in ("check", "test"):
        [body] = re.findall(rf"^{target}: \$\(READY\)\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        commands += [line.strip().replace("$(BIN)/", "") for line in body.splitlines()]
    assert len(commands) == 5
    return " && ".join(commands)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A copy of the tree, results included, since tests read them."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tmp_path / "tree" / path.name)
    yield tmp_path / "tree"
    shutil.rmtree(tmp_path / "tree")


def plant_and_see_it_fail(step: Step, command: str, tree: Path) -> None:
    good = (tree / step.place).read_text()
    [old] = re.findall(r"^-(.*)$", step.text, re.MULTILINE)
    [new] = re.findall(r"^\+(.*)$", step.text, re.MULTILINE)
    assert good.count(old) == 1
    (tree / step.place).write_text(good.replace(old, new))
    done = run(f"{command} -x", tree)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "FAILED" in done.stdout
    assert "is_as_good_as_plain" in done.stdout or "equation" in done.stdout
    (tree / step.place).write_text(good)


def follow(tree: Path, replaced: dict[str, str]) -> None:
    """All steps, one after the other; every command has to end green, but for the planted error."""
    tested = ""
    for step in steps():
        if step.verb == "plant in":
            plant_and_see_it_fail(step, tested, tree)
        elif step.verb != "run":
            apply(step, tree)
        for line in step.text.splitlines() if step.verb == "run" else ():
            command = replaced.get(line, line)
            tested = command if "hedgehog" in command else tested
            done = run(command, tree)
            told = f"{command}\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
            assert done.returncode == 0, told
            if "pytest" in command:
                assert re.search(r"\b[1-9]\d* passed", done.stdout), told
            if command == "saccade list attentions":
                assert "hedgehog" in done.stdout.split()


def test_the_page_has_six_steps_in_few_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^\*\*(\d)\.", page, re.MULTILINE) == list("123456")
    touched = {step.place.partition(",")[0] for step in steps() if step.verb in EDITS}
    assert touched == {
        "src/saccade/ops/linear/hedgehog.py",
        "src/saccade/layers/hedgehog.py",
        "src/saccade/layers/attentions.py",
        "CHANGELOG.md",
    }
    code = STEP.sub("", page.split("## Set up")[0])
    assert "```" not in code, "a block that says not what to do with it"


def test_the_steps_end_green(tree: Path) -> None:
    assert set(SHORT) < {line for step in steps() for line in step.text.splitlines()}
    follow(tree, SHORT)


@pytest.mark.slow
def test_the_steps_end_green_with_every_test(tree: Path) -> None:
    follow(tree, {"make check && make test": check_and_test(tree)})
