"""File input and output.

- `reading.py` opens and reads regular files only, up to a size limit.
- `parsing.py` checks the size and depth of JSON before it builds Python objects; `yaml_text.py`
  does so for YAML.
- `writing.py` replaces files atomically and durably, and holds lock files.
"""

from __future__ import annotations

from saccade.io.parsing import (
    CONFIG_LIMITS,
    RECORD_LIMITS,
    Limits,
    escape_for_terminal,
    is_unchanged,
    parse_json,
    parse_yaml,
    sealed,
    unsealed,
)
from saccade.io.reading import (
    MAX_BYTES,
    check_regular,
    decode_text,
    open_regular,
    parse_arrays,
    parse_json_object,
    read_bytes,
    read_json,
    read_json_object,
    read_text,
    read_yaml,
    sha256_file,
)
from saccade.io.writing import (
    append_text,
    check_writable,
    is_locked,
    locked,
    make_folder,
    open_lock,
    remove_leftovers,
    sync,
    try_lock,
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
