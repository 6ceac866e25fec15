"""The files inside a folder or a tar archive, read into memory; nothing is ever extracted."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from saccade.errors import DataError

__all__ = ["MAX_MEMBER_BYTES", "is_tar", "places", "read_members", "says"]

MAX_MEMBER_BYTES = 1 << 30


def is_tar(path: Path) -> bool:
    """Whether the name says that this is a tar archive."""
    return path.name.endswith((".tar", ".tar.gz", ".tgz"))


def places(path: Path, depth: int = 3) -> Iterator[Path]:
    """Where a copy may lie: a path itself, the archives in it, and so on in its sub-folders.

    Links are followed, but no folder is given twice. What may not be looked into is passed over.
    """
    yield path
    folders, seen = [path], {path.resolve()}
    for _ in range(depth):
        entries = [entry for folder in folders for entry in _entries(folder)]
        yield from (entry for entry in entries if is_tar(entry) and says(entry.is_file))
        found = {entry.resolve(): entry for entry in reversed(entries) if says(entry.is_dir)}
        folders = sorted(found[true] for true in found.keys() - seen)
        seen |= found.keys()
        yield from folders


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # a file, or a folder that may not be read
        return []


def read_members(path: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """Read the files whose name matches one of the shell patterns.

    Args:
        path: A folder (not its sub-folders), a tar archive or a single file.
        patterns: What a file's name, without its folder, has to match.

    Returns:
        File names, without folders, and contents.
    """
    try:
        if path.is_dir():
            found = [p for p in sorted(path.iterdir()) if _matches(p.name, patterns)]
            return {p.name: _read(p) for p in found if p.is_file()}
        if is_tar(path):
            return dict(_read_tar(path, patterns))
        return {path.name: _read(path)} if _matches(path.name, patterns) else {}
    except (tarfile.TarError, zlib.error, lzma.LZMAError):
        raise DataError(f"cannot read {path}: damaged, or not a tar archive") from None
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def says(ask: Callable[[], bool]) -> bool:
    """The answer of a path's `exists` or the like, which is no where it may not be looked at."""
    try:
        return ask()
    except OSError:
        return False


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read(path: Path) -> bytes:
    _check_size(str(path), path.stat().st_size)
    return path.read_bytes()


def _read_tar(path: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r:*") as archive:
        for member in archive:
            name = Path(member.name).name
            if not member.isfile() or not _matches(name, patterns):
                continue
            _check_size(f"{path}:{member.name}", member.size)
            file = archive.extractfile(member)
            assert file is not None
            yield name, file.read()


def _check_size(name: str, size: int) -> None:
    if size > MAX_MEMBER_BYTES:
        raise DataError(f"{name} has {size} bytes, more than the {MAX_MEMBER_BYTES} that are read")
