"""The image files of a folder: its split folders, classes and files, without reading an image."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from saccade.data.images import IMAGE_SUFFIXES, printable
from saccade.errors import ConfigError, DataError

__all__ = [
    "class_names",
    "find_pictures",
    "labeled_images",
    "names_in",
    "scan",
    "split_folders",
    "subfolders",
]

_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
_LIKE_SPLITS = frozenset(name for names in _SPLIT_NAMES.values() for name in names) | {"testing"}


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each split; the root itself is `train` if it has no split folders.

    Raises:
        DataError: The root is missing or cannot be read, or all of its sub-folders look like splits
            but form no accepted layout.
    """
    present = subfolders(root)
    found = {}
    for part, accepted in _SPLIT_NAMES.items():
        if name := next((name for name in accepted if name in present), None):
            found[part] = root / name
    understood = "train" in found and len(found) == len(present)
    if present and not understood and all(name.lower() in _LIKE_SPLITS for name in present):
        raise DataError(
            f"{str(root)!r}: the sub-folders {', '.join(map(repr, present))} look like splits, not "
            "classes; accepted: 'train', with or without 'val' and 'test', in lower case and one "
            "of each, or one sub-folder a class"
        )
    return found if "train" in found else {"train": root}


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the sub-folders; fewer than two are an error."""
    names = tuple(subfolders(folder))
    if len(names) < 2:
        found = f"only the class {names[0]!r}" if names else "no sub-folder"
        raise DataError(
            f"{printable(folder)} must have at least two classes, one sub-folder each, got {found}"
        )
    return names


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    try:
        return sorted(e.name for e in folder.iterdir() if e.is_dir() and e.name[0] != ".")
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    reasons = {errno.ENOENT: "no such folder", errno.ENOTDIR: "not a folder"}
    reason = reasons.get(error.errno or 0, f"the folder cannot be read: {error.strerror}")
    raise DataError(f"{str(error.filename)!r}: {reason}") from None


def scan(folder: Path, on_error: Callable[[OSError], object] = _refuse) -> list[Path]:
    """Return all files below a folder, sorted, without hidden ones.

    Links to folders are followed. A folder with several names is read once.

    Args:
        folder: The folder.
        on_error: Called for every folder that cannot be read; raises a `DataError` by default.
    """
    found: list[Path] = []
    entered: set[Path] = set()
    for where, folders, files in os.walk(folder, onerror=on_error, followlinks=True):
        real = Path(where).resolve()
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        found += [Path(where, name) for name in files if name[0] != "."]
    return sorted(found)


def labeled_images(
    folder: Path,
    names: Sequence[str],
    suffixes: Collection[str] = IMAGE_SUFFIXES,
    what: str = "image",
) -> tuple[list[str], list[int]]:
    """Return the paths of the images below a folder, class by class, and their labels.

    Args:
        folder: A folder with one sub-folder a class.
        names: The classes, in the order of the labels.
        suffixes: Suffixes of the files, in lower case.
        what: What the files are, in the singular.

    Raises:
        DataError: A class is unknown or empty, or there are no images.
    """
    present = set(subfolders(folder))
    unknown = present - set(names)
    if unknown:
        raise DataError(
            f"{printable(folder)}: class {min(unknown)!r} has no training {what}s; add some, or "
            "remove the class"
        )
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if name not in present:
            continue
        images = [p for p in scan(folder / name) if p.suffix.lower() in suffixes]
        if not images:
            raise DataError(f"class {name!r} is empty: no {what} in {printable(folder / name)}")
        paths += map(str, images)
        labels += [label] * len(images)
    if not paths:
        raise DataError(
            f"{printable(folder)} must have a sub-folder per class, such as {names[0]!r}, got "
            f"none; add {what}s or remove the folder"
        )
    return paths, labels


def names_in(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths relative to `root`, with `/` as the separator."""
    below = len(root.parts)
    return tuple("/".join(Path(path).parts[below:]) for path in paths)


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
