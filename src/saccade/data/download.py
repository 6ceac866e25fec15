"""Download a file, with interrupted downloads resumed.

Bytes are appended to `NAME.part`. The next attempt requests the rest (HTTP `Range`), or starts over
if the server does not support ranges. The file is renamed to `NAME` once its checksum matches.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from saccade.errors import DataError, writing_error
from saccade.io import open_regular, sync

__all__ = ["Progress", "download"]

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far, and the total or None if the server does not send it."""

_CHUNK = 1 << 18
_TIMEOUT_S = 30


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
