"""Pictures that a user names, found and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.errors import DataError
from saccade.train.pictures import find_pictures
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
