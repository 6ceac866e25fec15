"""Images are refused by what their headers promise, before they take memory or time."""

import io
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from PIL import Image

from saccade.data import DatasetInfo
from saccade.data.check import check_folder
from saccade.data.decoders import decode_parquet
from saccade.data.images import (
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    BadImageError,
    hash_file,
    load_rgb,
    read_image,
)
from saccade.data.local_copies import read_members
from saccade.errors import DataError
from saccade.train.image_inputs import open_picture
from tests.data.pictures import bomb, good_folder, save

INFO = DatasetInfo("x", 2, ("a", "b"), (8, 8), 3, (0.5,) * 3, (0.5,) * 3)
PEAK = """
import resource, sys
from pathlib import Path
from saccade.data.images import read_image
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[1:]:
    try:
        read_image(Path(name), 8, (0.0, 0.0, 1.0, 1.0))
        print("read")
    except Exception as error:
        print(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peaks_mib(*paths: Path) -> list[tuple[str, int]]:
    """Read images in a new process; return each outcome and the peak memory after it, in MiB."""
    words = [sys.executable, "-c", PEAK, *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    return [(told, int(kib) // 1024) for told, kib in zip(lines[::2], lines[1::2], strict=True)]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail instead of hanging."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_decoding_memory_is_within_the_estimate(tmp_path: Path) -> None:
    """A WebP that is refused takes none; others, in rising order, what their modes need."""
    webp = save(Image.new("RGB", (6000, 6000)), tmp_path / "x.webp", method=0, quality=1)
    assert webp.stat().st_size < 100_000
    modes = {"RGB": 4, "L": 5, "LA": 8, "RGBA": 8}
    images = [
        save(Image.new(mode, (3000, 3000)), tmp_path / f"{mode}.png", compress_level=1)
        for mode in modes
    ]
    (told, mib), *others = peaks_mib(webp, *images)
    assert "6000 x 6000 pixels of WEBP (RGB) takes 549 MiB, more than 512" in told
    assert mib < 50
    for (told, mib), a_pixel in zip(others, modes.values(), strict=True):
        assert told == "read"
        assert mib < 1.3 * a_pixel * 9_000_000 / 2**20 + 20


def test_too_large_an_image_for_its_mode_is_refused_by_its_header(tmp_path: Path) -> None:
    side = int((MAX_MEMORY_BYTES / 4) ** 0.5) - 10
    with pytest.raises(BadImageError) as error:
        read_image(bomb(tmp_path / "rgb.png", side, side // 2), 8)
    assert error.value.fault != "too_large"  # it is refused for its pixels, which are cut short
    rotated = Image.new("RGB", (8300, 8300))
    exif = Image.Exif()
    exif[274] = 6
    path = save(rotated, tmp_path / "turned.jpg", exif=exif, quality=1)
    with pytest.raises(BadImageError, match=r"8300 x 8300 pixels of JPEG \(RGB\) takes 525 MiB"):
        read_image(path, 8)


def test_a_file_of_too_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.bmp"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(BadImageError, match="bytes are more than the 269,484,032 that are read"):
        read_image(path, 8)
    assert hash_file(path) == ""


class Endless(io.RawIOBase):
    """A stream of zeros without an end that counts what is read of it."""

    count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self.count += len(buffer)
        if self.count > 2 * MAX_FILE_BYTES:
            raise AssertionError("read on and on")
        return len(buffer)


def test_stdin_is_read_up_to_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Endless()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(source)))
    with pytest.raises(DataError, match=r"^bad image on stdin: .* bytes are more than the"):
        open_picture("-", INFO)
    assert source.count <= MAX_FILE_BYTES + (1 << 20)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_special_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = good_folder(tmp_path / "images") / "cat" / "x.png"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with within(20):
        with pytest.raises(BadImageError, match=r"x\.png: (is a (FIFO|device)|Is a directory)"):
            read_image(path, 8)
        found = [finding.kind for finding in check_folder(tmp_path / "images").findings]
        assert found == ([] if kind == "folder" else ["unreadable"])
        assert hash_file(path) == ""


def test_a_small_file_is_read_with_little_memory(tmp_path: Path) -> None:
    """However much a file of its kind may have."""
    (tmp_path / "data_batch_1").write_bytes(b"small")
    tracemalloc.start()
    try:
        assert read_members(tmp_path, ["data_batch_*"]) == {"data_batch_1": b"small"}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_fifo_in_place_of_a_data_file_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("x.tar", "data_batch_1"):
        os.mkfifo(tmp_path / name)
        with within(20), pytest.raises(DataError, match="FIFO, not a regular file"):
            read_members(tmp_path / name, ["data_batch_*"])


def test_strips_do_not_change_pixels() -> None:
    """Images larger than a strip, against Pillow's conversion of the whole."""
    rng = np.random.default_rng(0)
    for mode in ("RGBA", "LA"):
        channels = len(mode)
        image = Image.fromarray(rng.integers(0, 256, (900, 701, channels), dtype=np.uint8), mode)
        whole = Image.alpha_composite(
            Image.new("RGBA", image.size, "white"), image.convert("RGBA")
        ).convert("RGB")
        assert load_rgb(image, "x").tobytes() == whole.tobytes()


def test_a_parquet_file_of_another_format_or_of_too_many_rows_is_refused() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")

    def file(**columns: object) -> bytes:
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), buffer)
        return buffer.getvalue()

    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    content = file(img=[{"bytes": eps}], label=[0])
    with pytest.raises(
        DataError, match=r"row 0: not a readable image \(not an image in a known format"
    ):
        decode_parquet({"train.parquet": content, "test.parquet": content})
    many = file(img=pyarrow.nulls(300_000, pyarrow.binary()), label=[0] * 300_000)
    assert len(many) < 10_000
    with pytest.raises(DataError, match=r"300,000 rows of .* are more than the 200,000 rows"):
        decode_parquet({"train.parquet": many, "test.parquet": many})
