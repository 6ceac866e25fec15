"""`saccade data check` on folders with and without faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saccade.data.check import KINDS, check_folder
from tests.cli.conftest import Saccade, fresh
from tests.data.pictures import bomb, close_folder, good_folder, picture, save, truncate


def faults(root: Path) -> set[tuple[str, str]]:
    return {(f.kind, Path(f.path).name) for f in check_folder(root).findings}


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A folder with one of every fault."""
    root = tmp_path / "bad"
    good_folder(root / "train")
    good_folder(root / "test", ("cat", "dog", "eel"), count=1)
    for name in ("cat", "dog", "eel"):
        path = root / "test" / name / "0.png"
        save(picture(sum(name.encode())), path)
    cat = root / "train" / "cat"
    (cat / "zero.png").write_bytes(b"")
    (cat / "noise.jpg").write_bytes(bytes(range(256)))
    truncate(save(picture(50), cat / "cut.png"))
    bomb(cat / "bomb.png")
    deep = (np.arange(64).reshape(8, 8) * 1000).astype(np.uint16)
    save(Image.fromarray(deep), cat / "deep.png")
    save(Image.fromarray(np.full((8, 8), np.nan, np.float32)), cat / "nan.tif")
    save(picture(51).convert("CMYK"), cat / "ink.jpg")
    frames = [picture(52), picture(53)]
    save(frames[0], cat / "moving.gif", save_all=True, append_images=frames[1:])
    (cat / "notes.txt").write_text("not an image")
    shutil.copy(cat / "0.png", cat / "again.png")
    shutil.copy(cat / "3.png", root / "train" / "dog" / "cat.png")
    save(Image.open(root / "train" / "dog" / "0.png"), root / "test" / "dog" / "leak.bmp")
    (root / "train" / "fox").mkdir()
    save(picture(54), root / "loose.png")
    good_folder(root / "more")
    return root


def test_every_kind_of_fault_is_reported(bad: Path) -> None:
    assert faults(bad) == {
        ("zero_byte", "zero.png"),
        ("unreadable", "noise.jpg"),
        ("truncated", "cut.png"),
        ("too_large", "bomb.png"),
        ("sixteen_bit", "deep.png"),
        ("not_finite", "nan.tif"),
        ("cmyk", "ink.jpg"),
        ("animated", "moving.gif"),
        ("not_an_image", "notes.txt"),
        ("duplicate", "again.png"),
        ("label_conflict", "cat.png"),
        ("duplicate_across_splits", "leak.bmp"),
        ("empty_class", "fox"),
        ("unknown_class", "eel"),
        ("missing_class", "fox"),
        ("loose_image", "loose.png"),
        ("foreign_folder", "more"),
    }
    assert {kind for kind, _ in faults(bad)} == KINDS.keys() - {
        "too_few_classes",
        "unreadable_folder",
    }


def test_a_good_folder_has_no_findings(tmp_path: Path) -> None:
    report = check_folder(good_folder(tmp_path))
    assert report.ok
    assert report.num_images == 12
    assert report.class_counts == {"train": {"cat": 6, "dog": 6}}


def test_one_class_alone_is_a_fault(tmp_path: Path) -> None:
    assert {kind for kind, _ in faults(good_folder(tmp_path, ("cat",)))} == {"too_few_classes"}


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_class_missing_from_a_split_is_a_fault(tmp_path: Path, part: str) -> None:
    good_folder(tmp_path / "train")
    save(picture(300), tmp_path / part / "dog" / "0.png")
    assert faults(tmp_path) == {("missing_class", "cat")}


@pytest.mark.parametrize("where", [".", "train", "test"])
def test_loose_images_are_a_fault_and_other_loose_files_are_not(tmp_path: Path, where: str) -> None:
    good_folder(tmp_path / "train")
    for number, name in enumerate(("cat", "dog")):
        save(picture(300 + number), tmp_path / "test" / name / "0.png")
    (tmp_path / where / "README.md").write_text("where these are from")
    (tmp_path / where / ".hidden.png").write_bytes(b"")
    assert faults(tmp_path) == set()
    save(picture(302), tmp_path / where / "loose.JPG")
    assert faults(tmp_path) == {("loose_image", "loose.JPG")}


def test_loose_images_beside_classes_are_a_fault(tmp_path: Path) -> None:
    save(picture(300), good_folder(tmp_path) / "loose.png")
    assert faults(tmp_path) == {("loose_image", "loose.png")}


def test_a_folder_beside_train_is_a_fault(tmp_path: Path) -> None:
    good_folder(tmp_path / "train")
    good_folder(tmp_path / "fresh")
    good_folder(tmp_path / "Test")
    assert faults(tmp_path) == {("foreign_folder", "fresh"), ("foreign_folder", "Test")}


def test_an_unreadable_folder_is_a_fault(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = save(picture(300), good_folder(tmp_path) / "cat" / "more" / "x.png").parent
    close_folder(closed, monkeypatch)
    assert faults(tmp_path) == {("unreadable_folder", "more")}
    code, out, err = saccade("data", "check", tmp_path)
    assert (code, err) == (3, f"saccade: {tmp_path}: 1 fault found\n")
    assert "Permission denied" in out
    close_folder(tmp_path, monkeypatch)
    told = f"saccade: '{tmp_path}': the folder cannot be read: Permission denied\n"
    assert saccade("data", "check", tmp_path) == (3, "", told)


def test_sixteen_bit_color_is_reported(tmp_path: Path) -> None:
    """Pillow opens it as 8-bit without a warning."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    rows = b"".join(b"\0" + bytes(range(12)) for _ in range(2))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0))
    content = header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    good_folder(tmp_path)
    (tmp_path / "cat" / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    assert faults(tmp_path) == {("sixteen_bit", "deep.png")}


def test_the_command_prints_a_table_and_exits_with_3(saccade: Saccade, bad: Path) -> None:
    code, out, err = saccade("data", "check", bad)
    assert code == 3
    assert "duplicate_across_splits" in out
    assert err == f"saccade: {bad}: 17 faults found\n"


def test_the_command_prints_json(saccade: Saccade, bad: Path, tmp_path: Path) -> None:
    code, out, _ = saccade("data", "check", bad, "--json")
    assert code == 3
    report = json.loads(out)
    assert not report["ok"]
    assert len(report["findings"]) == 17
    code, out, err = saccade("data", "check", good_folder(tmp_path / "good"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["ok"]


def test_names_are_printed_unchanged(saccade: Saccade, tmp_path: Path) -> None:
    folder = good_folder(tmp_path / "of [red]", count=2)
    (folder / "cat" / "[bold].png").write_bytes(b"")
    _, out, err = saccade("data", "check", folder)
    assert "cat/[bold].png" in out
    assert "[red]" in out.replace("\n", "")
    assert "1 fault found" in err


def test_names_that_would_break_a_line_are_escaped(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    folder = good_folder(tmp_path / "my\nimages", ("cat\x1b[31m", "été"), count=2)
    (folder / "été" / "new\nline.png").write_bytes(b"")
    _, out, err = saccade("data", "check", folder)
    assert "my\\nimages" in out
    assert "│ cat\\x1b[31m │" in out
    assert "│ été/new\\nline.png │" in out
    assert err == f"saccade: {tmp_path}/my\\nimages: 1 fault found\n"


def test_warnings_of_a_library_are_not_shown(tmp_path: Path) -> None:
    good_folder(tmp_path, count=1)
    bomb(tmp_path / "cat" / "bomb.png", 10_000, 9_000)
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff"
    save(picture(300), tmp_path / "dog" / "odd.jpg", exif=exif)
    done = fresh("data", "check", str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.decode() == f"saccade: {tmp_path}: 1 fault found\n"


def test_long_names_are_shown_whole(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = good_folder(tmp_path, count=2)
    names = [f"cat/ILSVRC2012_val_0000000{number}_of_a_long_name.JPEG" for number in (28, 29)]
    for name in names:
        (folder / name).write_bytes(b"")
    _, out, _ = saccade("data", "check", folder)
    rows = [line.split("│") for line in out.splitlines() if line.count("│") == 4]
    shown = "".join(row[2].strip() for row in rows)
    assert all(name in shown for name in names)
    assert "…" not in out


def test_a_fault_is_reported_once(
    saccade: Saccade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    good_folder(tmp_path / "train")
    good_folder(tmp_path / "val", count=1)
    (tmp_path / "train" / "cat" / "noise.jpg").write_bytes(bytes(range(256)))
    _, out, _ = saccade("data", "check", tmp_path)
    assert out.count("known format") == 1
    assert "the same pixels in two splits: measured accuracy is inflated" in out
    assert "test result" not in out


def test_a_missing_folder_is_a_one_line_error(saccade: Saccade, tmp_path: Path) -> None:
    code, _, err = saccade("data", "check", tmp_path / "missing")
    assert code == 3
    assert err.count("\n") == 1
    assert "no such folder" in err


def test_a_file_in_place_of_a_folder_is_an_error(saccade: Saccade, tmp_path: Path) -> None:
    file = save(picture(1), tmp_path / "x.png")
    assert saccade("data", "check", file) == (3, "", f"saccade: '{file}': not a folder\n")


@pytest.mark.parametrize("start", [b"", b"\x1f\x8b\x08\0\0\0\0\0\0\3"])
def test_a_corrupt_archive_is_a_one_line_error(
    saccade: Saccade, tmp_path: Path, start: bytes
) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(start + bytes(range(256)) * 4)
    code, _, err = saccade("data", "fetch", "cifar10", "--from", archive)
    assert code == 3
    assert err.count("\n") == 1
    assert f"cannot read {archive}: damaged, or not a tar archive" in err


def test_misnamed_split_folders_are_a_one_line_error(saccade: Saccade, tmp_path: Path) -> None:
    for part in ("Train", "Test"):
        good_folder(tmp_path / part)
    code, out, err = saccade("data", "check", tmp_path)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert "'Test', 'Train' look like splits, not classes" in err


def test_fetch_of_an_unknown_set_is_a_usage_error(saccade: Saccade) -> None:
    code, _, err = saccade("data", "fetch", "cifar11")
    assert code == 2
    assert "did you mean 'cifar10'" in err


def test_help_needs_no_torch() -> None:
    code = "import sys, saccade.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("suffix", ["gif", "tiff"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_animation_truncated_anywhere_is_reported_or_read(tmp_path: Path, suffix: str) -> None:
    """Training uses a complete first frame, whatever follows it."""
    path = tmp_path / "cat" / f"moving.{suffix}"
    frames = [picture(number, 8, 6) for number in range(60, 63)]
    save(frames[0], path, save_all=True, append_images=frames[1:])
    save(picture(1), tmp_path / "dog" / "still.png")
    whole = path.read_bytes()
    told = set()
    for length in range(100, len(whole), 5):
        path.write_bytes(whole[:length])
        report = check_folder(tmp_path, workers=1)
        details = [f.detail for f in report.findings if f.path == str(path)]
        told.add((*details, report.class_counts["train"]["cat"]))
    assert ("only its first frame can be read", 1) in told
    assert any(count == 0 for *_, count in told)
