"""Find the image files that a user names."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from saccade.data.folder_files import scan
from saccade.data.images import IMAGE_SUFFIXES
from saccade.errors import ConfigError, DataError

__all__ = ["find_pictures"]


def find_pictures(
    names: Iterable[str], suffixes: Collection[str] = IMAGE_SUFFIXES, what: str = "images"
) -> list[str]:
    """Expand names to image files: folders are searched, `-` is kept, URLs raise an error.

    Args:
        names: Files, folders or `-`.
        suffixes: Suffixes of the files that are found in folders, in lower case.
        what: What these files are, in the plural.
    """
    found: list[str] = []
    for name in names:
        if not name:
            raise ConfigError("IMAGE must be a file, a folder, or - for stdin, got ''")
        if "://" in name:
            raise ConfigError(
                f"IMAGE must be local, got {name!r}: URLs are not fetched; download the file first"
            )
        if name == "-":
            found.append(name)
            continue
        try:
            mode = Path(name).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"IMAGE {name!r}: no such file or folder") from None
        except OSError as error:
            raise DataError(f"IMAGE {name!r}: {error.strerror}") from None
        if stat.S_ISDIR(mode):
            found += _files_in(Path(name), suffixes, what)
        elif stat.S_ISREG(mode):
            found.append(name)
        else:
            raise DataError(f"IMAGE {name!r}: neither a regular file nor a folder")
    return found


def _files_in(folder: Path, suffixes: Collection[str], what: str) -> list[str]:
    inside = [str(file) for file in scan(folder) if file.suffix.lower() in suffixes]
    if not inside:
        raise DataError(f"IMAGE {str(folder)!r}: the folder has no {what}")
    return inside
