"""Write exported files: whole or not at all, and never over another file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from saccade.errors import ConfigError, ExportError, writing_error
from saccade.io import make_folder, remove_leftovers, write_file

__all__ = ["check_target", "write_output"]


def check_target(path: Path, *, suffix: str) -> None:
    """Check the place of an exported file before work begins.

    Raises:
        ConfigError: The name has another suffix, or exists.
    """
    if path.suffix != suffix:
        raise ConfigError(f"out must be a file named *{suffix}, got {str(path)!r}")
    if path.exists():
        raise ConfigError(f"out must be a new file, got {str(path)!r}, which exists")


def write_output(path: Path, content: bytes | Callable[[BinaryIO], object]) -> int:
    """Write a file atomically; return its size."""
    try:
        make_folder(path.parent)
        remove_leftovers(path.parent, path.name)
        write_file(path, content)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ExportError) from None
    return path.stat().st_size
