"""Every command of the pages exists, with its flags and keys, and runs on digits."""

import importlib
import shutil
from pathlib import Path

import click
import pytest
from PIL import Image
from typer.main import get_command

from saccade import cli
from saccade.config import DataConfig, list_recipes, load_config
from saccade.data import load_splits
from tests.pages.commands import (
    ELSEWHERE,
    ROOT,
    Command,
    commands,
    inline_commands,
    pages,
    run,
    runs_here,
    small,
)
from tests.waiting import PATIENCE_S

ALL = [command for page in pages() for command in commands(page)]


def parse(command: Command) -> click.Context:
    """The parsed command line; a flag that does not exist raises."""
    module = importlib.import_module(f"saccade.cli.{cli.module_of(command.words)}")
    found, words = get_command(module.app), list(command.words[1:])
    while isinstance(found, click.Group) or hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    return found.make_context(command.name, words)


def test_the_pages_have_many_commands():
    assert len(ALL) > 60
    assert {command.name for command in ALL} == set(cli.COMMANDS)


@pytest.mark.parametrize("command", dict.fromkeys(ALL), ids=str)
def test_a_command_of_the_pages_exists(command):
    assert command.name in cli.COMMANDS, "no such command"
    if "--help" in command.words:
        return
    context = parse(command)
    overrides = [
        word
        for name, value in context.params.items()
        if name != "slurm"
        for word in (value if isinstance(value, list | tuple) else [])
        if "=" in str(word)
    ]
    recipe = str(context.params.get("recipe"))
    known = recipe if recipe in list_recipes() else "digits-quick"
    if command.name in ("train", "compare", "tune"):
        load_config(known, overrides)


INLINE = [command for page in pages() for command in inline_commands(page)]


@pytest.mark.parametrize("command", dict.fromkeys(INLINE), ids=str)
def test_a_command_in_a_sentence_exists(command):
    assert command.name in cli.COMMANDS, "no such command"
    flags = {word.partition("=")[0] for word in command.words if word.startswith("--")}
    known = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert {flag for flag in flags if f"{flag} " not in known and f"{flag}\n" not in known} == set()


@pytest.mark.parametrize(
    "line",
    [
        ("train", "digits-quick", "--outt", "x"),
        ("evaluate", "run", "--splitt", "val"),
        ("train", "digits-quick", "train.epoch=3"),
    ],
)
def test_a_command_that_does_not_exist_is_told(line):
    with pytest.raises(Exception, match=r"outt|splitt|epoch"):
        test_a_command_of_the_pages_exists(Command("planted", line))


def digits_as_files(folder: Path) -> None:
    """A folder of images: three classes of digits, twenty images each."""
    split = load_splits(DataConfig(name="digits")).train
    for name, label in (("cat", 0), ("dog", 1), ("fish", 2)):
        (folder / name).mkdir(parents=True)
        for number, index in enumerate((split.labels == label).nonzero()[:20, 0].tolist(), 1):
            image = Image.fromarray(split.images[index, 0].numpy()).resize((32, 32))
            image.save(folder / name / f"{number}.png")


STUDIES = (
    *("resume", "compare-fairly", "tune-a-recipe", "more-gpus", "README"),
    *("analyze", "benchmarks", "compare", "convert", "convert-a-model", "tune"),
)
"""Pages that train several models in processes of their own, or measure times."""

RUNNABLE = {page: list(filter(runs_here, commands(page))) for page in pages()}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """What the pages take for granted: a folder of images, some pictures, two trained runs."""
    folder = tmp_path_factory.mktemp("workshop")
    digits_as_files(folder / "my-images")
    picture = folder / "my-images" / "cat" / "1.png"
    (folder / "photos").mkdir()
    for name in ("cat.png", "photo.png", "photo.jpg", "digit.png", "photos/1.png"):
        Image.open(picture).save(folder / name)
    train = small(Command("workshop", ("train", "digits-quick", "--out", "runs/digits")))
    result = run([train], folder, PATIENCE_S)
    assert result.returncode == 0, result.stderr[-3000:]
    shutil.copytree(folder / "runs" / "digits", folder / "runs" / "mine")
    return folder


def prepared(workshop: Path, folder: Path, lines: list[list[str]]) -> None:
    """Copy the workshop, but for what the commands make themselves."""
    shutil.copytree(workshop, folder, dirs_exist_ok=True)
    made = [line[line.index("--out") + 1] for line in lines if "--out" in line]
    for path in (folder / name for name in made if name.startswith("runs/")):
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem in STUDIES), id=page.stem)
        for page, found in RUNNABLE.items()
        if found
    ],
)
def test_the_commands_of_a_page_run_in_their_order(page, workshop, tmp_path):
    lines = [small(command) for command in RUNNABLE[page]]
    prepared(workshop, tmp_path, lines)
    result = run(lines, tmp_path, PATIENCE_S)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stderr.count("exit code 0 of saccade") == len(lines)


def test_few_commands_are_left_to_other_tests():
    elsewhere = [command for command in ALL if not runs_here(command)]
    assert len(elsewhere) < len(ALL) / 4, "\n".join(map(str, elsewhere))
    for part, folder in ELSEWHERE.items():
        assert any(part in f"{' '.join(command.words)} " for command in elsewhere), part
        assert list((ROOT / folder).glob("test_*.py"))


def test_a_command_that_fails_is_told(tmp_path):
    result = run([["evaluate", "nothing-here"]], tmp_path, PATIENCE_S)
    assert result.returncode == 2
    assert "exit code 2 of saccade evaluate nothing-here" in result.stderr
