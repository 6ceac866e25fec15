"""The reference pages are made from docstrings, help, keys and registries, and are complete."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from saccade.config import Config, list_recipes
from saccade.layers import list_attentions
from saccade.models import list_models
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


def check(folder: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docs" / "reference.py", "--check", "--folder", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_pages_are_up_to_date():
    result = check()
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("cli.md", "--dry-run", "--rehearse"),
        ("configuration.md", "`optim.lr`", "`optim.rate`"),
        ("python.md", "num_classes: int | None", "classes: int | None"),
        ("names.md", "`vit_micro_patch4_32`", "`vit_small`"),
        ("from-scratch.md", "`hidden_size`", "`width`"),
    ],
)
def test_a_page_that_tells_an_old_name_is_told(tmp_path, page, old, new):
    shutil.copytree(FOLDER, tmp_path / "reference")
    path = tmp_path / "reference" / page
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    result = check(tmp_path / "reference")
    assert result.returncode == 1
    assert f"{page}: out of date" in result.stderr


def test_every_key_has_a_meaning():
    page = (FOLDER / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+\.\w+)` \| .+ \| .+ \| (.+) \|$", page, flags=re.MULTILINE)
    sections = ("model", "data", "augment", "optim", "train", "run", "tune")
    keys = [
        f"{section}.{key}"
        for section in sections
        for key in Config.model_fields[section].annotation.model_fields
    ]
    assert [key for key, _ in rows] == keys
    assert [key for key, meaning in rows if len(meaning) < 8] == []


def test_every_name_is_listed():
    page = (FOLDER / "names.md").read_text()
    for name in (*list_recipes(), *list_models(), *list_attentions()):
        assert f"`{name}`" in page
