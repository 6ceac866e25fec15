"""A cache file is either complete or absent, also after disk errors."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from saccade.config import DataConfig
from saccade.data import load_splits
from saccade.data.cache import (
    Arrays,
    cache_dir,
    cache_path,
    read_cache,
    write_atomically,
    write_cache,
)
from saccade.data.sources import SOURCES
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


def test_a_cache_file_reads_back_unchanged(tmp_path: Path) -> None:
    write_cache(tmp_path / "new" / "x", small(), "here")
    arrays, metadata = read_cache(tmp_path / "new" / "x")
    assert arrays.sha256() == small().sha256() == metadata["sha256"]
    assert arrays.class_names == ("a", "b")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x"]


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_file_cut_short_is_not_taken(tmp_path: Path, keep: int) -> None:
    write_cache(tmp_path / "x", small(), "here")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:keep])
    with pytest.raises(DataError, match="is not a complete data set") as error:
        read_cache(tmp_path / "x")
    assert "\n" not in str(error.value)


def test_a_changed_value_in_a_cache_file_is_an_error(tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=f"is not a complete data set .*{missing}"):
        read_cache(tmp_path / "x")


def test_a_full_disk_is_a_one_line_error_and_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"what was there before")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(target)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout == f"cannot write {target}: File too large\n"
    assert target.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_an_unwritable_folder_is_a_one_line_error() -> None:
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
def test_an_unknown_home_folder_is_a_one_line_error(folder: str) -> None:
    """`~` stays unknown to a user without a HOME who is not in the system's table."""
    command = [sys.executable, "-c", UNKNOWN_HOME]
    environment = {**os.environ, "SACCADE_DATA": folder}
    environment.pop("HOME", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    problem = f"the home folder in the data cache path {folder} is unknown"
    assert done.stdout == f"{problem}: set SACCADE_DATA to a folder\n"


def test_the_full_disk_limit_does_not_affect_this_process() -> None:
    """The file size limit of the full-disk test must not apply to this process."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "set", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("is_older", [False, True])
def test_changed_class_names_in_the_cache_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    """Older files have no checksum of names; their names are compared with the data set's."""
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    images, labels = torch.zeros(200, 3, 4, 4, dtype=torch.uint8), torch.arange(200) % 100
    path = cache_path("cifar100")
    names = SOURCES["cifar100"].class_names
    test = images[:100].clone(), labels[:100].clone()
    write_cache(path, Arrays(images, labels, *test, names), "made up")
    assert load_splits(DataConfig(name="cifar100", val_fraction=0)).info.class_names == names
    content = path.read_bytes().replace(b"bear", b"boar")
    if is_older:
        content = content.replace(b'"names_sha256"', b'"names_sha999"')
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"safetensors is (damaged|not cifar100 \(class names)"):
        load_splits(DataConfig(name="cifar100", val_fraction=0))
