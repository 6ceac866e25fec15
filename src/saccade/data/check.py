"""Check every file of a user's image folder for faults before training."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from saccade.data.folder_files import scan, split_folders, subfolders
from saccade.data.images import IMAGE_SUFFIXES, BadImageError, load_rgb, opened

__all__ = ["KINDS", "Finding", "FolderReport", "check_folder"]

KINDS = {
    "unreadable_folder": "a folder that cannot be read: training stops",
    "zero_byte": "the file is empty",
    "unreadable": "the file cannot be decoded",
    "truncated": "the file is cut short",
    "too_large": "more pixels than are decoded (a decompression bomb?)",
    "not_finite": "pixels that are NaN or infinite",
    "sixteen_bit": "more than 8 bits a channel: training rounds to 8",
    "cmyk": "CMYK: training converts to RGB, which may shift colors",
    "animated": "several frames: training takes the first",
    "not_an_image": "not an image by its file name: training ignores it",
    "duplicate_across_splits": "the same pixels in two splits: measured accuracy is inflated",
    "label_conflict": "the same pixels in two classes",
    "duplicate": "the same pixels twice in a class",
    "empty_class": "a class without images",
    "too_few_classes": "fewer than two classes",
    "unknown_class": "a class without training images",
    "missing_class": "a class of the training images that is missing from this split",
    "loose_image": "an image in no class: training ignores it",
    "foreign_folder": "neither train, val nor test: training ignores it",
}
"""Every kind of finding and its meaning."""

_DEEP_MODES = ("I", "F")
_BITS_PER_SAMPLE = 258  # TIFF tag


@dataclass(frozen=True)
class Finding:
    """One fault: its kind (a key of `KINDS`), the path, and details."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True)
class FolderReport:
    """The result of `check_folder`.

    Attributes:
        root: The folder.
        num_images: Number of readable images.
        class_counts: Number of readable images by split and class.
        findings: All faults.
    """

    root: str
    num_images: int
    class_counts: dict[str, dict[str, int]]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class _CheckedFile:
    """One file: its split and class, the hash of its pixels if it is readable, its findings."""

    path: Path
    part: str
    label: str
    digest: str | None
    findings: tuple[Finding, ...]


def check_folder(root: Path, workers: int = 4) -> FolderReport:
    """Open every file, hash its pixels and count the classes.

    Args:
        root: A folder with one sub-folder per class, or with `train/`, `val/` and `test/` folders
            that have one.
        workers: Number of threads.

    Raises:
        DataError: The folder or the folder of a split is missing or cannot be read.
    """
    folders = split_folders(root)
    classes = {part: subfolders(folder) for part, folder in folders.items()}
    unreadable: list[Finding] = []

    def note(error: OSError) -> None:
        unreadable.append(Finding("unreadable_folder", str(error.filename), error.strerror or ""))

    files = [
        (path, part, label)
        for part, folder in folders.items()
        for label in classes[part]
        for path in scan(folder / label, note)
    ]
    with ThreadPoolExecutor(max(1, workers)) as pool:
        checked = list(pool.map(lambda file: _check_file(*file), files))
    readable = [file for file in checked if file.digest is not None]
    counted = Counter((file.part, file.label) for file in readable)
    counts = {
        part: {name: counted[part, name] for name in names} for part, names in classes.items()
    }
    findings = [
        *unreadable,
        *_stray_findings(root, folders),
        *_class_findings(folders, counts),
        *(finding for file in checked for finding in file.findings),
        *_duplicates(readable),
    ]
    return FolderReport(str(root), len(readable), counts, tuple(findings))


def _check_file(path: Path, part: str, label: str) -> _CheckedFile:
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        finding = Finding("not_an_image", str(path), f"suffix {path.suffix!r}")
        return _CheckedFile(path, part, label, None, (finding,))
    try:
        with opened(path) as image:
            mode_findings = tuple(_mode_findings(image, path))
            pixels = load_rgb(image, path)
        # Opened again: counting the frames of an image can corrupt the first frame.
        with opened(path) as image:
            findings = (*mode_findings, *_frame_findings(image, path))
    except BadImageError as error:
        finding = Finding(error.fault, str(path), error.detail)
        return _CheckedFile(path, part, label, None, (finding,))
    digest = hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()
    return _CheckedFile(path, part, label, digest, findings)


def _mode_findings(image: Image.Image, path: Path) -> Iterator[Finding]:
    """Report image modes that training converts to 8-bit RGB."""
    if image.mode.startswith(_DEEP_MODES) or _bits(image) > 8:
        yield Finding("sixteen_bit", str(path), f"mode {image.mode}, {_bits(image)} bits")
    if image.mode == "CMYK":
        yield Finding("cmyk", str(path), "mode CMYK")


def _frame_findings(image: Image.Image, path: Path) -> Iterator[Finding]:
    """Report animations and images with unreadable later frames; training uses the first frame."""
    try:
        frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # MPO: a stereo JPEG
    except Exception:  # the error of a truncated later frame depends on the format
        yield Finding("truncated", str(path), "only its first frame can be read")
        return
    if frames > 1:
        yield Finding("animated", str(path), f"{frames} frames")


def _bits(image: Image.Image) -> int:
    """Return the bits per channel from the header; Pillow opens 16-bit color as 8-bit."""
    tiles = getattr(image, "tile", ())
    if image.format == "PNG" and tiles:
        return 16 if "16" in str(tiles[0][3]) else 8
    if image.format == "TIFF":
        return int(max(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))))
    return 16 if image.mode.startswith(_DEEP_MODES) else 8


def _stray_findings(root: Path, folders: dict[str, Path]) -> Iterator[Finding]:
    """Report folders and images that training ignores because of where they are."""
    used = set(folders.values())
    if root not in used:
        names = ", ".join(folder.name for folder in folders.values())
        for name in subfolders(root):
            if root / name not in used:
                yield Finding("foreign_folder", str(root / name), f"beside {names}")
    for folder in sorted({root, *used}):
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name[0] != "." and path.suffix.lower() in IMAGE_SUFFIXES:
                yield Finding("loose_image", str(path), f"directly in {folder}")


def _class_findings(
    folders: dict[str, Path], counts: dict[str, dict[str, int]]
) -> Iterator[Finding]:
    train = counts["train"]
    if len(train) < 2:
        yield Finding("too_few_classes", str(folders["train"]), f"{len(train)} sub-folder(s)")
    for part, of_class in counts.items():
        for name, count in of_class.items():
            if count == 0:
                yield Finding("empty_class", str(folders[part] / name), "no readable image")
            if name not in train:
                yield Finding(
                    "unknown_class", str(folders[part] / name), f"not in {folders['train']}"
                )
        for name in sorted(train.keys() - of_class.keys()):
            yield Finding("missing_class", str(folders[part] / name), f"not in {folders[part]}")


def _duplicates(files: Iterable[_CheckedFile]) -> Iterator[Finding]:
    """Report files with the same pixels as an earlier file.

    `duplicate` is reported only if the file is in the same class and split as all earlier copies.
    """
    groups: dict[str, list[_CheckedFile]] = defaultdict(list)
    for file in files:
        assert file.digest is not None
        groups[file.digest].append(file)
    for group in groups.values():
        for number, file in enumerate(group[1:], start=1):
            earlier = group[:number]
            other_part = next((e for e in earlier if e.part != file.part), None)
            other_label = next((e for e in earlier if e.label != file.label), None)
            if other_label is not None:
                yield Finding("label_conflict", str(file.path), f"same as {other_label.path}")
            if other_part is not None:
                yield Finding(
                    "duplicate_across_splits", str(file.path), f"same as {other_part.path}"
                )
            if other_label is None and other_part is None:
                yield Finding("duplicate", str(file.path), f"same as {earlier[0].path}")
