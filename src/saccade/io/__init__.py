"""File input and output: an atomic writer, file locks and size-limited readers.

- `writing.py` replaces files atomically and durably.
- `locks.py` holds lock files.
- `opening.py` and `reading.py` open and read regular files only, up to a size limit.
- `parsing.py` checks the size and depth of JSON and YAML before it builds Python objects.
- `arrays.py` reads NumPy archives.
- `sealing.py` puts the hash of a JSON object into the object.
- `terminal.py` escapes names for printing.
"""

from __future__ import annotations

from saccade.io.arrays import MAX_BYTES, parse_arrays, read_arrays
from saccade.io.locks import is_locked, locked, open_lock, try_lock
from saccade.io.opening import check_regular, open_regular
from saccade.io.parsing import CONFIG_LIMITS, RECORD_LIMITS, Limits, parse_json, parse_yaml
from saccade.io.reading import (
    decode_text,
    parse_json_object,
    read_bytes,
    read_json,
    read_json_object,
    read_text,
    read_yaml,
    sha256_file,
)
from saccade.io.sealing import is_unchanged, sealed, unsealed
from saccade.io.terminal import escape_for_terminal
from saccade.io.writing import (
    append_text,
    check_writable,
    make_folder,
    remove_leftovers,
    sync,
    write_file,
    write_json,
    write_new,
)

__all__ = [
    "CONFIG_LIMITS",
    "MAX_BYTES",
    "RECORD_LIMITS",
    "Limits",
    "append_text",
    "check_regular",
    "check_writable",
    "decode_text",
    "escape_for_terminal",
    "is_locked",
    "is_unchanged",
    "locked",
    "make_folder",
    "open_lock",
    "open_regular",
    "parse_arrays",
    "parse_json",
    "parse_json_object",
    "parse_yaml",
    "read_arrays",
    "read_bytes",
    "read_json",
    "read_json_object",
    "read_text",
    "read_yaml",
    "remove_leftovers",
    "sealed",
    "sha256_file",
    "sync",
    "try_lock",
    "unsealed",
    "write_file",
    "write_json",
    "write_new",
]
