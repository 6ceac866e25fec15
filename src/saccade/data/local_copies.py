"""Read a data set from a local copy: files in folders and tar archives, in any known layout.

Archives are read into memory and not extracted.
"""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saccade.data.cache import Arrays, exists_safely, is_cached
from saccade.data.decoders import MAX_FILE_BYTES
from saccade.data.sources import Layout, Source
from saccade.errors import DataError
from saccade.io import open_regular, read_bytes

__all__ = ["places", "read_local", "read_members"]

_MAX_ARCHIVE_BYTES = 8 << 30
_MAX_FAULTS = 3  # faulty copies listed in an error message


def read_local(source: Source, path: Path) -> Arrays:
    """Decode a local copy: a folder, an archive, or a folder that contains one of these.

    Raises:
        DataError: The path holds no known layout of the data set, or its content does not match.
    """
    if not is_cached(path):
        raise DataError(f"no such file or folder: {path}")
    patterns = [pattern for layout in source.layouts for pattern in layout.patterns]
    faults: list[DataError] = []
    for place in places(path):
        try:
            files = read_members(place, patterns)
            for layout in source.layouts:
                if picked := layout.pick(files):
                    return _decode_files(source, layout, picked, where=str(place))
        except DataError as error:
            faults.append(error)
    if faults:
        raise DataError("; ".join(map(str, faults[:_MAX_FAULTS])))
    layouts = " or ".join(layout.name for layout in source.layouts)
    raise DataError(f"{path} must hold {source.name} as {layouts}: no such files found")


def _decode_files(
    source: Source, layout: Layout, files: Mapping[str, bytes], *, where: str
) -> Arrays:
    """Decode files in a known layout and check them against the data set's checksums and shapes."""
    for name, md5 in layout.md5.items():
        if (got := hashlib.md5(files[name], usedforsecurity=False).hexdigest()) != md5:
            raise DataError(
                f"{where}: checksum mismatch for {source.name}: expected md5 {md5} of {name}, "
                f"got {got}"
            )
    (train, train_labels), (test, test_labels) = layout.decode(files)
    for images, labels in ((train, train_labels), (test, test_labels)):
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(
            source.class_names
        ):
            raise DataError(
                f"{where}: labels must be from 0 to {len(source.class_names) - 1}, got "
                f"{int(labels.min())} to {int(labels.max())}"
            )
    shapes = tuple(train.shape), tuple(test.shape)
    if source.shapes not in {None, shapes}:
        raise DataError(
            f"{where}: wrong shapes for {source.name}: expected {source.shapes}, got {shapes}"
        )
    train, train_labels = _in_order(train, train_labels, source.block_sha256)
    arrays = Arrays(train, train_labels, test, test_labels, source.class_names)
    if source.sha256 is not None and (got := arrays.sha256()) != source.sha256:
        raise DataError(
            f"{where}: checksum mismatch for {source.name}: expected {source.sha256[:16]}..., "
            f"got {got[:16]}..."
        )
    return arrays


def _in_order(images: Tensor, labels: Tensor, blocks: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Sort the parts of the training set into their official order, by their checksums."""
    if not blocks or len(images) % len(blocks):
        return images, labels
    image_parts, label_parts = images.chunk(len(blocks)), labels.chunk(len(blocks))
    found = [hashlib.sha256(part.contiguous().numpy().data).hexdigest() for part in image_parts]
    if found == list(blocks) or sorted(found) != sorted(blocks):
        return images, labels
    order = [found.index(block) for block in blocks]
    return torch.cat([image_parts[i] for i in order]), torch.cat([label_parts[i] for i in order])


def _is_tar(path: Path) -> bool:
    """True if the file name ends like that of a tar archive."""
    return path.name.endswith((".tar", ".tar.gz", ".tgz"))


def places(path: Path, depth: int = 3) -> Iterator[Path]:
    """Yield the places to search for a copy: a path, the archives in it, and its sub-folders.

    Sub-folders are searched down to `depth`. Links are followed, but no folder is yielded twice.
    Unreadable folders are skipped.
    """
    yield path
    folders, seen = [path], {path.resolve()}
    for _ in range(depth):
        entries = [entry for folder in folders for entry in _entries(folder)]
        yield from (e for e in entries if _is_tar(e) and exists_safely(e.is_file))
        found = {e.resolve(): e for e in reversed(entries) if exists_safely(e.is_dir)}
        folders = sorted(found[real] for real in found.keys() - seen)
        seen |= found.keys()
        yield from folders


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # a file, or an unreadable folder
        return []


def read_members(path: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """Read the files whose name matches one of the shell patterns.

    Args:
        path: A folder (not its sub-folders), a tar archive or a single file.
        patterns: Shell patterns of file names, without folders.

    Returns:
        Contents by file name, without folders.
    """
    try:
        if path.is_dir():
            found = [p for p in sorted(path.iterdir()) if _matches(p.name, patterns)]
            return {p.name: _read(p) for p in found if p.is_file()}
        if _is_tar(path):
            return dict(_read_tar(path, patterns))
        return {path.name: _read(path)} if _matches(path.name, patterns) else {}
    except (tarfile.TarError, zlib.error, lzma.LZMAError):
        raise DataError(f"cannot read {path}: damaged, or not a tar archive") from None
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read(path: Path) -> bytes:
    return read_bytes(path, limit=MAX_FILE_BYTES, kind=DataError)


def _read_tar(path: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with open_regular(path) as opened, tarfile.open(fileobj=opened, mode="r:*") as archive:
        archive.fileobj = _Bounded(archive.fileobj)
        for member in archive:
            name = Path(member.name).name
            if member.offset_data + member.size > _MAX_ARCHIVE_BYTES:
                raise DataError(f"{path} must be at most {_MAX_ARCHIVE_BYTES:,} bytes decompressed")
            if not member.isfile() or not _matches(name, patterns):
                continue
            _check_size(f"{path}:{member.name}", member.size)
            file = archive.extractfile(member)
            assert file is not None
            yield name, file.read()


class _Bounded:
    """A decompressed archive with a limit on the size of one read.

    tarfile reads long names and extended headers whole, whatever size the archive declares.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, which must be at most the limit."""
        if not 0 <= size <= MAX_FILE_BYTES:
            raise DataError(f"a header of the archive asks for {size:,} bytes")
        content: bytes = self._file.read(size)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_size(name: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise DataError(f"{name} must be at most {MAX_FILE_BYTES:,} bytes, got {size:,}")
