"""Files that are no files, or hold far too much: every command ends, in a few short lines."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from saccade.models import load_model
from saccade.runs import RunFolder
from saccade.study import compare
from tests.cli.conftest import Saccade
from tests.study.tiny_comparison import tiny_plan
from tests.train.tiny_runs import forget_manifest, tiny

MAX_LINE = 1000
DEEP, MANY = 100_000, 300_000

Spoil = Callable[[Path], object]


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that waits for a FIFO, or for ever."""

    def end(*_: Any) -> None:
        raise TimeoutError("the command hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def nested(path: Path) -> None:
    path.write_text("[" * DEEP)


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def many_keys(path: Path) -> None:
    path.write_text("{" + ", ".join(f'"k{number}": 1' for number in range(MANY)) + "}")


def assert_ends_well(found: tuple[int, str, str]) -> None:
    code, _, told = found
    assert code in {0, 2, 3, 4}, told
    assert "unexpected" not in told
    lines = told.splitlines()
    assert len(lines) < 12
    assert max(map(len, lines), default=0) < MAX_LINE
    assert code == 0 or lines[-1].startswith("saccade: ")


@pytest.fixture
def old(run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run without a manifest, so that all of its files are parsed."""
    out = RunFolder(shutil.copytree(run, tmp_path / "run"))
    forget_manifest(out)
    return out.path


def commands(run: Path, out: Path) -> dict[str, list[object]]:
    return {
        "evaluate": ["evaluate", run],
        "explain": ["explain", run, "--data", "--out", out],
        "report": ["report", run, "--out", out, "--format", "md"],
        "resume": ["train", "--resume", "--out", run, "--quiet"],
    }


RUN_FILES = ["config.yaml", "dataset.json", "environment.json", "status.json", "summary.json"]
RUN_FILES += ["metrics.jsonl", "predictions.npz", "initial.json", "manifest.json"]


READ_BY_EXPLAIN = ["config.yaml", "dataset.json", "status.json", "predictions.npz"]
PLACES = [(c, name) for c in ("evaluate", "report", "resume") for name in RUN_FILES]
PLACES += [("explain", name) for name in READ_BY_EXPLAIN]


@pytest.mark.parametrize(("command", "name"), PLACES)
@pytest.mark.parametrize("spoil", [fifo, nested, garbage])
def test_a_file_of_a_run(
    saccade: Saccade, old: Path, tmp_path: Path, name: str, command: str, spoil: Spoil
) -> None:
    spoil(old / name)
    assert_ends_well(saccade(*commands(old, tmp_path / "out")[command]))


@pytest.mark.parametrize("name", ["manifest.json", "dataset.json", "config.yaml"])
@pytest.mark.parametrize("spoil", [fifo, folder, many_keys])
def test_a_file_of_a_run_with_a_manifest(
    saccade: Saccade, run: Path, tmp_path: Path, name: str, spoil: Spoil
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    spoil(copy / name)
    found = saccade("evaluate", copy)
    assert_ends_well(found)
    assert found[0] == 2
    assert "run" in found[2]


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "trainer.json"])
@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize("spoil", [fifo, folder, nested])
def test_a_file_of_a_checkpoint(
    saccade: Saccade, old: Path, tmp_path: Path, name: str, command: str, spoil: Spoil
) -> None:
    RunFolder(old).reopen()
    (old / "summary.json").unlink()
    spoil(RunFolder(old).checkpoints()[-1].path / name)
    assert_ends_well(saccade(*commands(old, tmp_path / "out")[command]))


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_the_lock_of_a_run(saccade: Saccade, old: Path, tmp_path: Path, kind: str) -> None:
    RunFolder(old).reopen()
    (old / ".lock").unlink()
    (tmp_path / "precious").write_text("content")
    if kind == "link":
        (old / ".lock").symlink_to(tmp_path / "precious")
    else:
        {"fifo": fifo, "folder": folder}[kind](old / ".lock")
    found = saccade("train", "--resume", "--out", old, "--quiet")
    assert_ends_well(found)
    assert found[0] == 2
    assert ".lock" in found[2]
    assert (tmp_path / "precious").read_text() == "content"


RECIPES = {
    "nested lists": "[" * DEEP,
    "nested mappings": "a: " + "{a: " * DEEP,
    "nested blocks": "- " * DEEP,
    "many keys": "".join(f"key{number}: 1\n" for number in range(MANY)),
    "keys of a section": "model:\n" + "".join(f"  key{number}: 1\n" for number in range(5000)),
    "a giant list": "optim:\n  betas: [" + "0.9, " * 3_000_000 + "0.9]\n",
    "a long list": "optim:\n  betas: [" + "0.9, " * 5_000 + "0.9]\n",
    "a long key": f"model:\n  {'k' * 100_000}: 1\n",
    "a long value": f"model:\n  name: {'k' * 100_000}\n",
    "a long name of a number": f"train:\n  epochs: {'9' * 10_000}\n",
    "aliases": "a: &a [x, x]\n"
    + "".join(
        f"{n}: &{n} [*{b}, *{b}]\n" for b, n in zip("abcdefghijk", "bcdefghijkl", strict=True)
    )
    * 3,
    "garbage": "\x00\x01\x02",
    "no day": "run:\n  seed: 2001-99-99\n",
    "a tag": "run:\n  seed: !!int x\n",
}


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
@pytest.mark.parametrize("kind", [*RECIPES, "fifo"])
def test_a_recipe(saccade: Saccade, tmp_path: Path, command: str, kind: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    if kind == "fifo":
        os.mkfifo(recipe)
    else:
        recipe.write_text(RECIPES[kind])
    more = {
        "compare": ["--attention", "softmax,taylor", "--seeds", "1"],
        "tune": ["--trials", "1", "search.optim.lr={low: 1e-4, high: 1e-2}"],
    }
    start = time.perf_counter()
    found = saccade(command, recipe, *more.get(command, []), "--out", tmp_path / "out")
    assert time.perf_counter() - start < 60
    assert_ends_well(found)
    if (command, kind) == ("tune", "a long value"):  # a model is looked up by the trials
        assert found[0] == 4
        return
    assert found[0] == 2
    assert len(found[2].splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["[" * DEEP, "{a: " * 1000, "9" * 10_000, "x" * 1_000_000])
def test_an_override(saccade: Saccade, tmp_path: Path, value: str) -> None:
    found = saccade("train", "digits-quick", f"optim.lr={value}", "--out", tmp_path / "out")
    assert_ends_well(found)
    assert found[0] == 2


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    plan = tiny_plan(out, "train.epochs=1", attentions=("softmax", "taylor"), seeds=1)
    compare(plan, out / "study", quiet=True)
    return out / "study"


@pytest.mark.parametrize("name", ["study.json", "base.yaml", "measures.json", "results.json"])
@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize("spoil", [fifo, nested, garbage])
def test_a_file_of_a_comparison(
    saccade: Saccade, compared: Path, tmp_path: Path, name: str, command: str, spoil: Spoil
) -> None:
    study = shutil.copytree(compared, tmp_path / "study")
    spoil(study / name)
    words = {"compare": ["--resume"], "report": [study, "--format", "md"]}[command]
    found = saccade(command, *words, "--out", study if command == "compare" else tmp_path / "page")
    assert_ends_well(found)
    if command == "compare" and name != "results.json":  # which is made again
        assert found[0] == 2


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("spoil", [fifo, folder, nested, garbage])
def test_a_file_of_a_saved_model(tmp_path: Path, name: str, spoil: Spoil) -> None:
    from saccade.errors import ConfigError
    from saccade.models import create_model

    create_model("vit_micro_patch4_32").save_pretrained(tmp_path / "model")
    spoil(tmp_path / "model" / name)
    with pytest.raises(ConfigError) as caught:
        load_model(tmp_path / "model")
    assert name in str(caught.value)
    assert len(str(caught.value)) < MAX_LINE


def test_names_of_classes_and_files_reach_no_terminal_raw(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    from saccade.train import train

    evil = "\x1b]0;title\x07cat"
    for part in ("train", "test"):
        for place, name in enumerate((evil, "dog\u202egod")):
            images = tmp_path / "images" / part / name
            images.mkdir(parents=True)
            for shade in range(6):
                Image.new("L", (8, 8), 100 * place + shade).save(images / f"{shade}.png")
    overrides = [f"data.root={tmp_path / 'images'}", "data.name=folder", "data.image_size=8"]
    overrides += ["data.num_train=null", "data.num_test=null", "train.epochs=1"]
    train(tiny(*overrides, "train.batch_size=4"), tmp_path / "run", quiet=True)
    bad = tmp_path / f"{evil}.png"
    bad.write_bytes(b"no image")
    good = tmp_path / "images" / "test" / evil / "0.png"
    for words in (
        ["evaluate", tmp_path / "run"],
        ["predict", tmp_path / "run", good, bad],
        ["explain", tmp_path / "run", good, bad, "--out", tmp_path / "figures"],
        ["explain", tmp_path / "run", "--data", "--out", tmp_path / "figures"],
        ["report", tmp_path / "run", "--out", tmp_path / "page", "--format", "md"],
    ):
        code, shown, told = saccade(*words)
        assert code in {0, 3}
        assert not {"\x1b", "\x07", "\u202e"} & set(shown + told), words
