"""Read the files in a folder or a tar archive into memory, without extracting the archive."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from saccade.errors import DataError
from saccade.io import open_regular, read_bytes

__all__ = ["MAX_MEMBER_BYTES", "exists_safely", "is_tar", "places", "read_members"]

MAX_MEMBER_BYTES = 1 << 30
MAX_ARCHIVE_BYTES = 8 << 30


def is_tar(path: Path) -> bool:
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
        yield from (e for e in entries if is_tar(e) and exists_safely(e.is_file))
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
        if is_tar(path):
            return dict(_read_tar(path, patterns))
        return {path.name: _read(path)} if _matches(path.name, patterns) else {}
    except (tarfile.TarError, zlib.error, lzma.LZMAError):
        raise DataError(f"cannot read {path}: damaged, or not a tar archive") from None
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def exists_safely(test: Callable[[], bool]) -> bool:
    """Call `exists`, `is_file` or `is_dir` of a path; False if the path cannot be accessed."""
    try:
        return test()
    except OSError:
        return False


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read(path: Path) -> bytes:
    return read_bytes(path, limit=MAX_MEMBER_BYTES, kind=DataError)


def _read_tar(path: Path, patterns: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with open_regular(path) as opened, tarfile.open(fileobj=opened, mode="r:*") as archive:
        archive.fileobj = _Bounded(archive.fileobj)
        for member in archive:
            name = Path(member.name).name
            if member.offset_data + member.size > MAX_ARCHIVE_BYTES:
                raise DataError(f"{path} must be at most {MAX_ARCHIVE_BYTES:,} bytes decompressed")
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
        if not 0 <= size <= MAX_MEMBER_BYTES:
            raise DataError(f"a header of the archive asks for {size:,} bytes")
        content: bytes = self._file.read(size)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_size(name: str, size: int) -> None:
    if size > MAX_MEMBER_BYTES:
        raise DataError(f"{name} must be at most {MAX_MEMBER_BYTES:,} bytes, got {size:,}")
