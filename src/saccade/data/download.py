"""Download a file so that an interrupted download goes on where it stopped.

The content grows in `NAME.part`; a second try asks the server for the rest (HTTP `Range`) and
starts over where the server does not know how. The file gets its name once its checksum is right.
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

__all__ = ["Progress", "download"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are so far, and in all where the server says so."""

_CHUNK = 1 << 18
_TIMEOUT_S = 30


def download(url: str, path: Path, md5: str, progress: Progress = lambda done, total: None) -> None:
    """Bring `url` to `path`, or do nothing where it is there already.

    Raises:
        FullDiskError: The disk is full. Nothing is left of the file.
        DataError: The server cannot be reached or refuses, the file cannot be written, or the
            content is not what it should be. What came so far is kept for the next try, except
            when it is complete and wrong.
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
        raise DataError(f"{url}: the file has md5 {got}, wants {md5}")
    part.replace(path)


def _transfer(url: str, part: Path, progress: Progress) -> None:
    """Append the missing bytes to `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        if error.code == 416:  # nothing after what we have: the checksum decides
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
    """A nearly full disk takes a part and says how much; asked again, it says why."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _on_disk(part: Path) -> Iterator[None]:
    """Tell a full or read-only disk from a broken network, and free what was taken of it."""
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
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
