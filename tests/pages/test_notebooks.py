"""The sources of lessons and notebooks run, and the notebooks and pages are made from them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for p in (ROOT / "notebooks").glob("*.py") if p.stem != "build")
LESSONS = [path for path in SOURCES if path.stem.startswith("lesson_")]
MECHANISMS = [path for path in SOURCES if path not in LESSONS]

RUN_ALL = """
import contextlib, io, json, os, sys, tempfile, traceback, warnings

import jupytext
import matplotlib.pyplot as plt

warnings.filterwarnings("ignore", message=".*non-interactive.*")
for path in sys.argv[1:]:
    notebook, printed, namespace = jupytext.read(path, fmt="py:percent"), [], {"__name__": "lesson"}
    error = None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, cell in enumerate(notebook.cells):
            out = io.StringIO()
            if cell.cell_type == "code" and error is None:
                try:
                    with contextlib.redirect_stdout(out):
                        exec(compile(cell.source, f"cell {number}", "exec"), namespace)
                except Exception:
                    error = traceback.format_exc()
            printed.append(out.getvalue())
            plt.close("all")
        os.chdir("/")
    print(json.dumps({"path": path, "error": error, "printed": printed}), flush=True)
"""


def run_all(paths: list[Path]) -> dict[str, dict]:
    """What each source prints by cell, and its error; all run in one process."""
    command = [sys.executable, "-c", RUN_ALL, *map(str, paths)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        env={**os.environ, "MPLBACKEND": "agg"},
    )
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return {Path(entry["path"]).stem: entry for entry in found}


@pytest.fixture(scope="module")
def lessons():
    return run_all(LESSONS)


@pytest.fixture(scope="module")
def mechanisms():
    return run_all(MECHANISMS)


def shape_of(text: str) -> str:
    """A printed text with its fractions and percentages left open: they vary with the machine."""
    return re.sub(r"-?\d+(\.\d+)?%|-?\d+\.\d+(e-?\d+)?|\de-\d+", "#", text)


def stored(path: Path) -> list[str]:
    """What each cell of the committed notebook prints, from the source's first cell on."""
    cells = nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells
    texts = [
        "".join(out.text for out in cell.get("outputs", ()) if out.output_type == "stream")
        for cell in cells
    ]
    return [texts[0], *texts[2:]]  # the second cell of a notebook says how it is made


def check(path: Path, found: dict) -> None:
    assert found["error"] is None, found["error"]
    assert list(map(shape_of, found["printed"])) == list(map(shape_of, stored(path)))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_and_prints_what_its_page_shows(path, lessons):
    check(path, lessons[path.stem])


@pytest.mark.slow
@pytest.mark.parametrize("path", MECHANISMS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path, mechanisms):
    check(path, mechanisms[path.stem])


ERRORS = {
    "lesson_01_patches": (
        "permute(1, 3, 0, 2, 4)  # patch row",
        "permute(3, 1, 0, 2, 4)  # patch row",
    ),
    "lesson_02_class_token": (
        "len(patches), -1, -1), patches]",
        "len(patches), -1, -1), -patches]",
    ),
    "lesson_03_positions": ("table[:, 1::2] = (position * speed).cos()", "table[:, 1::2] = 0"),
    "lesson_04_attention": ("/ q.shape[-1] ** 0.5", "/ q.shape[-1]"),
    "lesson_05_heads": (
        "permute(2, 0, 3, 1, 4)  # (B, H, N, D)",
        "permute(2, 0, 3, 1, 4).flip(2)  #",
    ),
    "lesson_06_block": ("return x * 0.5 * (1 +", "return x * (1 +"),
    "lesson_09_taylor": ("weights = 1 + s + s**2 / 2", "weights = 1 + s + s**2"),
    "lesson_10_random_features": ("q @ q / 2", "q @ q"),
    "lesson_11_learned_kernel": ("x = x * D**-0.25", "x = x * D**-0.5"),
    "lesson_12_limits": ("return 1 + s + s**2 / 2", "return s.exp()"),
}
"""A wrong line for each lesson whose comparison does not follow a long training."""


def test_the_assertions_of_lessons_fail_on_errors(tmp_path):
    for stem, (old, new) in ERRORS.items():
        text = (ROOT / "notebooks" / f"{stem}.py").read_text()
        assert old in text, stem
        (tmp_path / f"{stem}.py").write_text(text.replace(old, new, 1))
    found = run_all(sorted(tmp_path.glob("*.py")))
    missed = [
        stem for stem, entry in found.items() if "AssertionError" not in (entry["error"] or "")
    ]
    assert found.keys() == ERRORS.keys()
    assert missed == []


def test_there_is_a_notebook_for_each_lesson_and_mechanism():
    assert len(LESSONS) == 12
    assert {path.stem for path in MECHANISMS} == {
        "vit",
        "taylor",
        "taylorshift",
        "performer_favor",
        "performer_relu",
        "performer_exp",
        "performer_gelu_elu",
        "performer_ftheta",
    }


def make(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "notebooks" / "build.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_notebooks_and_pages_are_those_of_the_sources():
    result = make("--check")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def copy(tmp_path):
    """A copy of the sources, the notebooks and their pages."""
    for name in ("notebooks", "docs/lessons", "docs/mechanisms"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("notebooks/lesson_01_patches.py", "P = 4", "P = 8"),
        ("notebooks/lesson_01_patches.py", "# 1. Patches", "# 1. Squares"),
        ("docs/lessons/01-patches.md", "tokens", "words"),
    ],
)
def test_a_change_without_a_new_notebook_is_told(copy, name, old, new):
    path = copy / name
    path.write_text(path.read_text().replace(old, new))
    result = make("--check", root=copy)
    assert result.returncode == 1
    assert "out of date" in result.stderr


def test_a_picture_of_another_run_is_told(copy):
    picture = copy / "docs" / "lessons" / "figures" / "01-patches-1.png"
    picture.write_bytes(b"another")
    assert make("--check", root=copy).returncode == 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_cells_are_short_and_pictures_are_described(path):
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    pictures = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            assert len(lines) <= 40
            shown = [out for out in cell.outputs if "image/png" in out.get("data", {})]
            is_picture = "picture" in cell.metadata.get("tags", ())
            assert len(shown) == is_picture
            assert len(cell.metadata.get("alt", "")) >= 20 * is_picture
            pictures += len(shown)
    assert pictures >= 1


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_compares_with_ours_and_ends_with_an_exercise(path):
    cells = nbformat.read(path.with_suffix(".ipynb"), as_version=4).cells
    assert "## Exercise" in cells[-2].source
    assert cells[-1].metadata["tags"] == ["answer"]
    assert "assert" in cells[-1].source
    built = "".join(cell.source for cell in cells[:-1] if cell.cell_type == "code")
    assert "saccade" in built
    assert "assert" in built
