"""A file in the cache is whole or not there, whatever the disk does."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from saccade.data.cache import Arrays, cache_dir, read_cache, write_atomically, write_cache
from saccade.errors import DataError

FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from saccade.data.cache import write_atomically
from saccade.errors import FullDiskError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 200_000)
except FullDiskError as error:
    print(error)
    sys.exit(error.exit_code)
"""


UNKNOWN_HOME = """
import pwd, sys
pwd.getpwuid = {}.__getitem__
from saccade.data.cache import cache_dir
from saccade.errors import DataError
try:
    cache_dir()
except DataError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def small() -> Arrays:
    images = torch.arange(96, dtype=torch.uint8).view(8, 3, 2, 2)
    return Arrays(images[:6], torch.arange(6), images[6:], torch.arange(2), ("a", "b"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_cache(tmp_path / "new" / "x", small(), "here")
    arrays, metadata = read_cache(tmp_path / "new" / "x")
    assert arrays.sha256() == small().sha256() == metadata["sha256"]
    assert arrays.class_names == ("a", "b")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x"]


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_file_cut_short_is_not_taken(tmp_path: Path, keep: int) -> None:
    write_cache(tmp_path / "x", small(), "here")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:keep])
    with pytest.raises(DataError, match="is not a whole data set") as error:
        read_cache(tmp_path / "x")
    assert "\n" not in str(error.value)


def test_a_value_that_changed_is_noticed(tmp_path: Path) -> None:
    write_cache(tmp_path / "x", small(), "here")
    content = bytearray((tmp_path / "x").read_bytes())
    content[-1] ^= 1
    (tmp_path / "x").write_bytes(bytes(content))
    with pytest.raises(DataError, match="x is damaged: delete it"):
        read_cache(tmp_path / "x")


@pytest.mark.parametrize("missing", ["sha256", "source", "class_names"])
def test_a_file_without_its_record_is_not_taken(tmp_path: Path, missing: str) -> None:
    metadata = {"sha256": "", "source": "", "class_names": "[]"}
    del metadata[missing]
    arrays = vars(small())
    tensors = {part: arrays[part].contiguous() for part in arrays if part != "class_names"}
    (tmp_path / "x").write_bytes(save(tensors, metadata))
    with pytest.raises(DataError, match=f"is not a whole data set .*{missing}"):
        read_cache(tmp_path / "x")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"what was there before")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(target)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout == f"cannot write {target}: File too large\n"
    assert target.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_cannot_be_written_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^cannot write /proc/saccade/x: [^\n]+$"):
        write_atomically(Path("/proc/saccade/x"), b"")


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("SACCADE_DATA")
    assert cache_dir() == tmp_path / "xdg" / "saccade"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "saccade"


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "~/x"])
def test_a_home_that_nobody_has_is_one_line(folder: str) -> None:
    """`~` stays unknown to a user without a HOME who is not in the system's table."""
    command = [sys.executable, "-c", UNKNOWN_HOME]
    environment = {**os.environ, "SACCADE_DATA": folder}
    environment.pop("HOME", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    told = "is in no home that is known: set SACCADE_DATA to a folder"
    assert done.stdout == f"the data cache {folder} {told}\n"


def test_the_limit_is_not_ours() -> None:
    """The full-disk test must not have limited this process."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_files_are_for_whom_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "set", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
