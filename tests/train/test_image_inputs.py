"""Image names of the user: files are found, others are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from saccade.data.folder_files import find_pictures
from saccade.errors import ConfigError, DataError
from tests.data.pictures import close_folder, picture, save


def test_folders_are_searched(tmp_path: Path) -> None:
    wanted = [save(picture(i), tmp_path / "sub" / f"{i}.png") for i in range(2)]
    save(picture(2), tmp_path / ".hidden" / "x.png")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_pictures([str(tmp_path)]) == [str(path) for path in wanted]


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = save(picture(1), tmp_path / "sub" / "x.png").parent
    save(picture(2), tmp_path / "y.png")
    close_folder(closed, monkeypatch)
    with pytest.raises(DataError, match=r"sub': the folder cannot be read: Permission denied$"):
        find_pictures([str(tmp_path)])


def test_names_that_are_not_images_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.png")
    (tmp_path / "file.png").touch()
    for name, reason in {
        "fifo.png": "neither a regular file nor a folder",
        "absent.png": "no such file or folder",
        "file.png/x.png": "no such file or folder",
        "x" * 300: "File name too long",
    }.items():
        with pytest.raises(DataError) as error:
            find_pictures([str(tmp_path / name)])
        assert str(error.value) == f"IMAGE '{tmp_path / name}': {reason}"


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ConfigError, match="IMAGE must be a file, a folder, or - for stdin, got ''"):
        find_pictures([""])


def test_a_file_without_permission_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(picture(1), tmp_path / "closed" / "x.png")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(DataError, match=r"x\.png': Permission denied$"):
        find_pictures([str(path)])
