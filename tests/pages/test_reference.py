"""The reference pages are made from docstrings, help, keys and registries, and are complete."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

from saccade.config import Config, list_recipes
from saccade.layers import list_attentions
from saccade.models import list_models

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


@pytest.fixture
def check(monkeypatch):
    """docs/reference.py --check, for the pages in a folder."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def call(folder: Path) -> None:
        monkeypatch.setattr(sys, "argv", ["reference.py", "--check", "--folder", str(folder)])
        module.main()

    return call


def test_the_pages_are_up_to_date(check):
    check(FOLDER)


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
def test_a_page_with_an_old_name_is_told(tmp_path, check, page, old, new):
    shutil.copytree(FOLDER, tmp_path / "reference")
    path = tmp_path / "reference" / page
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SystemExit, match=f"{page}: out of date"):
        check(tmp_path / "reference")


def test_a_renamed_flag_makes_the_page_out_of_date(check, monkeypatch):
    import saccade.cli.report as command

    (found,) = command.app.registered_commands
    monkeypatch.setattr(found, "help", "Another help.")
    with pytest.raises(SystemExit, match=r"cli.md: out of date"):
        check(FOLDER)


def test_every_key_has_a_meaning():
    page = (FOLDER / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+\.\w+)` \| .+ \| .+ \| (.+) \|$", page, flags=re.MULTILINE)
    sections = ("model", "init", "data", "augment", "optim", "train", "run", "tune")
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
