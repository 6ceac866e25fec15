"""Open and read files: regular files only, up to a size limit."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import stat
import zipfile
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from saccade.errors import ConfigError, SaccadeError, reading_error
from saccade.io.parsing import CONFIG_LIMITS, RECORD_LIMITS, Limits, parse_json, parse_yaml

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 4 << 30  # of an archive of arrays
MAX_ARRAYS = 64


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. FIFOs and devices raise an error without blocking.

    Raises:
        IsADirectoryError: The path is a folder.
        OSError: The path is not a regular file or cannot be opened.
    """
    flags = os.O_RDONLY | (0 if follow else os.O_NOFOLLOW)
    return cast(BufferedReader, open_file(path, flags, "rb"))


def open_file(path: Path, flags: int, mode: str) -> IO[bytes]:
    """Open a regular file with flags of `os.open`; otherwise as `open_regular`."""
    return open(path, mode, opener=lambda _, __: _open_descriptor(path, flags))


def _open_descriptor(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        if error.errno == errno.ENXIO:  # a socket, or a FIFO opened for writing
            raise OSError(errno.EINVAL, "is not a regular file", str(path)) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    name = "a FIFO" if stat.S_ISFIFO(kind) else "a device"
    raise OSError(errno.EINVAL, f"is {name}, not a regular file", str(path))


def check_regular(path: Path) -> None:
    """Check that a path is a regular file, before a library opens it.

    Raises:
        OSError: As `open_regular` does.
    """
    open_regular(path).close()


def sha256_file(path: Path) -> str:
    """The SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(
    path: Path, *, limit: int = RECORD_LIMITS.size, kind: type[SaccadeError] = ConfigError
) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Raises:
        SaccadeError: The file is missing, not a regular file, too large, or unreadable; `kind` is
            the class of the error.
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


def read_text(path: Path, *, limit: int = RECORD_LIMITS.size) -> str:
    """Read a whole UTF-8 text file; otherwise as `read_bytes`."""
    return decode_text(read_bytes(path, limit=limit), path)


def decode_text(content: bytes, path: Path) -> str:
    """Decode the content of a UTF-8 text file."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8 text"
        raise ConfigError(f"{str(path)!r} cannot be read: {message}") from None


def read_json(path: Path, *, limits: Limits = RECORD_LIMITS) -> Any:
    """Read and parse a JSON file.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or exceeds `limits`.
    """
    return parse_json(read_text(path, limit=limits.size), repr(str(path)), limits=limits)


def read_json_object(path: Path, *, limits: Limits = RECORD_LIMITS) -> dict[str, Any]:
    """Read a JSON file whose value is an object; otherwise as `read_json`."""
    return parse_json_object(read_bytes(path, limit=limits.size), path, limits=limits)


def parse_json_object(
    content: bytes, path: Path, *, limits: Limits = RECORD_LIMITS
) -> dict[str, Any]:
    """Parse the content of a JSON file, as `read_json_object` does."""
    values = parse_json(decode_text(content, path), repr(str(path)), limits=limits)
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} is not a JSON object")
    return values


def read_yaml(path: Path, *, limits: Limits = CONFIG_LIMITS) -> Any:
    """Read and parse a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not YAML of plain values, has a duplicate key, or
            exceeds `limits`.
    """
    return parse_yaml(read_text(path, limit=limits.size), str(path), limits=limits)


def parse_arrays(content: bytes, path: Path) -> dict[str, NDArray[Any]]:
    """Parse an uncompressed `.npz` file, as `numpy.savez` writes it.

    Claimed sizes of arrays are checked before memory is allocated.

    Raises:
        ConfigError: The content is not such an archive.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, zipfile.BadZipFile, EOFError, NotImplementedError, KeyError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{str(path)!r} cannot be read: {message}") from None
    except (OSError, TypeError, SyntaxError, RuntimeError, OverflowError, MemoryError) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"{str(path)!r} cannot be read: {message}") from None


def _check_members(archive: zipfile.ZipFile) -> None:
    """Raise `ValueError` if an array's header claims more bytes than the file holds for it."""
    from numpy.lib import format as npy

    members = archive.infolist()
    if len(members) > MAX_ARRAYS:
        raise ValueError(f"it has {len(members)} arrays, more than {MAX_ARRAYS}")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{member.filename} is compressed")
        with archive.open(member) as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"{member.filename} holds {dtype}, which is no kind of number")
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(f"{member.filename} is not a complete array of numbers")
