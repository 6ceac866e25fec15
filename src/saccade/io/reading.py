"""Read files: regular files only, up to a size limit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError, SaccadeError, reading_error
from saccade.io.opening import open_regular
from saccade.io.parsing import CONFIG_LIMITS, RECORD_LIMITS, Limits, parse_json, parse_yaml

__all__ = [
    "decode_text",
    "parse_json_object",
    "read_bytes",
    "read_json",
    "read_json_object",
    "read_text",
    "read_yaml",
    "sha256_file",
]


def sha256_file(path: Path) -> str:
    """The SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(
    path: Path, *, limit: int = RECORD_LIMITS.size, kind: type[SaccadeError] = ConfigError
) -> bytes:
    """Read a whole regular file.

    Args:
        path: The file.
        limit: Maximum size in bytes.
        kind: Exception class to raise.

    Raises:
        SaccadeError: The file is missing, not a regular file, too large, or unreadable.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            # read() allocates the requested size. A file that is too large is not read.
            content = file.read(size + 1) if size <= limit else None
    except OSError as error:
        raise reading_error(path, error, kind) from None
    if content is None or len(content) > limit:
        raise kind(f"{str(path)!r} cannot be read: it is larger than {limit:,} bytes")
    return content


def read_text(
    path: Path, *, limit: int = RECORD_LIMITS.size, kind: type[SaccadeError] = ConfigError
) -> str:
    """Read a whole UTF-8 text file; otherwise as `read_bytes`."""
    return decode_text(read_bytes(path, limit=limit, kind=kind), path, kind=kind)


def decode_text(content: bytes, path: Path, *, kind: type[SaccadeError] = ConfigError) -> str:
    """Decode the content of a UTF-8 text file."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8 text"
        raise kind(f"{str(path)!r} cannot be read: {message}") from None


def read_json(
    path: Path, *, limits: Limits = RECORD_LIMITS, kind: type[SaccadeError] = ConfigError
) -> Any:
    """Read and parse a JSON file.

    Raises:
        SaccadeError: The file cannot be read, is not JSON, or exceeds `limits`.
    """
    text = read_text(path, limit=limits.size, kind=kind)
    return parse_json(text, repr(str(path)), limits=limits, kind=kind)


def read_json_object(
    path: Path, *, limits: Limits = RECORD_LIMITS, kind: type[SaccadeError] = ConfigError
) -> dict[str, Any]:
    """Read a JSON file whose value is an object; otherwise as `read_json`."""
    content = read_bytes(path, limit=limits.size, kind=kind)
    return parse_json_object(content, path, limits=limits, kind=kind)


def parse_json_object(
    content: bytes,
    path: Path,
    *,
    limits: Limits = RECORD_LIMITS,
    kind: type[SaccadeError] = ConfigError,
) -> dict[str, Any]:
    """Parse the content of a JSON file, as `read_json_object` does."""
    text = decode_text(content, path, kind=kind)
    values = parse_json(text, repr(str(path)), limits=limits, kind=kind)
    if not isinstance(values, dict):
        raise kind(f"{str(path)!r} is not a JSON object")
    return values


def read_yaml(
    path: Path, *, limits: Limits = CONFIG_LIMITS, kind: type[SaccadeError] = ConfigError
) -> Any:
    """Read and parse a YAML file.

    Raises:
        SaccadeError: The file cannot be read, is not YAML of plain values, has a duplicate key, or
            exceeds `limits`.
    """
    text = read_text(path, limit=limits.size, kind=kind)
    return parse_yaml(text, str(path), limits=limits, kind=kind)
