"""A disk without room: the same exit code wherever it is met, and one line that names the place."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from saccade.data.sources import SOURCES
from tests.cli.conftest import Saccade
from tests.data.test_sources import MNIST, idx_files, in_folder


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk, in memory, that can hold names but no content; only root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk here: {getattr(error, 'stderr', error)}")
    try:
        (folder / "filling").write_bytes(bytes(16 * 1024))
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


SEARCH = "search.optim.lr={low: 1e-4, high: 1e-2, log: true}"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "RECIPE"],
        ["train", "RECIPE", "--dry-run"],
        ["compare", "RECIPE", "--attention", "softmax,taylor", "--seeds", "1"],
        ["tune", "RECIPE", SEARCH, "--trials", "1"],
        ["report", "RUN"],
        ["explain", "RUN", "test:1"],
    ],
    ids=lambda words: words[0] + "--dry-run" * ("--dry-run" in words),
)
def test_commands_that_write_a_folder(
    saccade: Saccade, words: list[str], recipe: Path, run: Path, full_disk: Path
) -> None:
    paths = {"RECIPE": recipe, "RUN": run}
    out = full_disk / "out"
    code, shown, told = saccade(*(paths.get(word, word) for word in words), "--out", out)
    assert (code, shown) == (4, "")
    (line,) = told.splitlines()
    assert "cannot write" in line
    assert str(out) in line
    assert line.endswith("No space left on device")


def test_dry_run_on_a_disk_that_cannot_be_written(
    saccade: Saccade, recipe: Path, full_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full_disk)], check=True)
    words = ["train", recipe, "--out", full_disk / "out"]
    found = saccade(*words, "--dry-run")
    assert found == saccade(*words)
    assert found[0] == 2
    assert found[2].endswith("cannot write there: Read-only file system\n")


def test_data_that_does_not_fit_the_cache(
    saccade: Saccade, full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(full_disk))
    monkeypatch.setitem(SOURCES._entries, "mnist", MNIST)
    local = in_folder(tmp_path / "mnist", idx_files(zipped=False))
    code, _, told = saccade("data", "fetch", "mnist", "--from", local)
    assert code == 4, told
    assert told == f"saccade: cannot write {full_disk}/mnist.safetensors: No space left on device\n"
