"""How often commands read a checkpoint: hashing it is most of the work of opening a large one."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from saccade.runs import RunFolder
from tests.cli.conftest import Saccade

_opened: list[str] = []
_counting = False


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if not _counting or event != "open" or arguments[1] is None:  # `os.open` of an opener
        return
    if str(arguments[0]).endswith(".safetensors"):
        _opened.append(str(arguments[0]))


sys.addaudithook(_note)  # for as long as the process lives


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The weight files that Python opens, which is how they are hashed; loading them is Rust's."""
    global _counting
    _opened.clear()
    _counting = True
    yield _opened
    _counting = False


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RUN"),
        ("predict", "RUN", "IMAGE"),
        ("explain", "RUN", "IMAGE", "--out", "OUT"),
        ("explain", "RUN", "--data", "test:0", "--weights", "last", "--out", "OUT"),
    ],
    ids=lambda words: " ".join(words),
)
def test_commands_hash_a_checkpoint_once(
    saccade: Saccade, run: Path, tmp_path: Path, opened: list[str], words: tuple[str, ...]
) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "gray.png")
    places = {"RUN": run, "IMAGE": tmp_path / "gray.png", "OUT": tmp_path / "out"}
    code, _, err = saccade(*(places.get(word, word) for word in words))
    assert code == 0, err
    assert opened
    assert sorted(opened) == sorted(set(opened))


def test_a_file_that_changed_is_hashed_again(run: Path, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(run, tmp_path / "run"))
    newest, faults = copy.newest_intact()
    assert newest is not None
    assert not faults
    content = bytearray((newest.path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest.path / "model.safetensors").write_bytes(content)
    assert copy.newest_intact()[1] == [
        f"{newest.path.name}: model.safetensors is not what was written"
    ]
