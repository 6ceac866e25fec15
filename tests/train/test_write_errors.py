"""Disk errors while a run writes: the message names the file and the operation."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import FullDiskError, TrainingError
from saccade.runs import RunFolder
from saccade.train import train
from tests.cli.conftest import Saccade, saccade
from tests.train.tiny_runs import tiny

__all__ = ["saccade"]

CODES = [errno.EIO, errno.ENOSPC, errno.EROFS]
FILES = ["status.json", "summary.json", "predictions.npz", "manifest.json", "trainer.json"]


def failing(name: str, code: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """A sync that fails for the file of this name, or its temporary file."""

    def sync(descriptor: int) -> Any:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == name or path.name.startswith(f".{name}."):
            raise OSError(code, os.strerror(code))
        return real(descriptor)

    return sync


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_synced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(os, "fsync", failing(name, code, os.fsync))
    with pytest.raises(TrainingError) as caught:
        train(tiny("train.epochs=1"), out, quiet=True)
    told = str(caught.value)
    assert told.startswith(f"cannot write to '{out}': ")
    assert name in told
    assert os.strerror(code) in told
    assert caught.value.exit_code == 4
    assert isinstance(caught.value, FullDiskError) == (code == errno.ENOSPC)
    monkeypatch.undo()
    assert not RunFolder(out).is_finished()
    assert not [path for path in out.rglob(".*") if path.name.startswith(f".{name}.")]
    train(tiny("train.epochs=1"), out, resume=True, quiet=True)
    assert RunFolder(out).damage() == {}


class ClosesBadly:
    """A file whose write error is only reported when it is closed."""

    def __init__(self, file: Any, code: int) -> None:
        self.file, self.code = file, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("words", [["report"], ["explain", "--data"]], ids=lambda words: words[0])
def test_an_error_on_closing_a_file_names_the_file(
    saccade: Saccade,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
) -> None:
    opened = Path.open

    def open_to_fail(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = opened(path, mode, *arguments, **options)
        return ClosesBadly(file, code) if mode == "xb" else file

    monkeypatch.setattr(Path, "open", open_to_fail)
    found, shown, told = saccade(words[0], finished, *words[1:], "--out", tmp_path / "out")
    (line,) = told.splitlines()
    assert "cannot write" in line
    assert str(tmp_path / "out") in line
    assert line.endswith(os.strerror(code))
    assert (found, shown) == (4 if code == errno.ENOSPC else 2, "")
