"""A power cut, played on the files that a killed process left.

The model is that of a journaling file system such as ext4. Data that were not synced are there, or
are zeros, or the file ends where it was synced last. Of the names that were given and taken since
the last sync of anything, the newest may be lost, in the order in which they came.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["cut_power", "sizes"]

NAMING = ("create", "rename", "unlink")


@dataclass
class _Disk:
    """What would outlast a power cut."""

    synced: dict[str, int]
    written: dict[str, int] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)
    naming: list[tuple[str, str, str]] = field(default_factory=list)


def sizes(folder: Path) -> dict[str, int]:
    """The size of every file, before a process acts on them."""
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def cut_power(journal: Path, before: dict[str, int], rng: random.Random) -> int:
    """Lose what was not synced, as far as chance has it; the number of things lost."""
    disk = _Disk(dict(before), dict(before))
    for line in journal.read_text(errors="replace").splitlines():
        what, path, other, size = line.split("\t")
        _note(disk, what, path, other, int(size))
    lost = 0
    for what, path, other in reversed(disk.naming[rng.randint(0, len(disk.naming)) :]):
        lost += _undo(what, Path(path), Path(other) if other else None)
    for path in sorted(disk.dirty):
        lost += _spoil(Path(path), disk.synced.get(path, 0), rng)
    return lost


def _note(disk: _Disk, what: str, path: str, other: str, size: int) -> None:
    if what == "sync":
        disk.naming.clear()
        disk.dirty.discard(path)
        disk.synced[path] = disk.written.get(path, 0)
    elif what == "write":
        disk.dirty.add(path)
        disk.written[path] = disk.written.get(path, 0) + size
    elif what in ("create", "truncate"):
        disk.written[path] = 0
        disk.synced[path] = 0
    elif what == "kept":
        disk.naming[-1] = ("rename", path, f"{disk.naming[-1][2]}\t{other}")
    if what in NAMING:
        disk.naming.append((what, path, other))
    if what == "rename":
        _move(disk, other, path)


def _move(disk: _Disk, source: str, target: str) -> None:
    """Files, and all files below a folder, have another name now."""
    for table in (disk.synced, disk.written):
        for name in [n for n in table if n == source or n.startswith(source + "/")]:
            table[target + name[len(source) :]] = table.pop(name)
    for name in [n for n in disk.dirty if n == source or n.startswith(source + "/")]:
        disk.dirty.discard(name)
        disk.dirty.add(target + name[len(source) :])


def _undo(what: str, path: Path, other: Path | None) -> bool:
    """Take a change of names back."""
    if what == "create":
        is_cached = path.is_file()
        path.unlink(missing_ok=True)
        return is_cached
    if what == "unlink":
        if other is None or not path.parent.is_dir():
            return False
        shutil.copyfile(other, path)
        return True
    source, _, kept = str(other).partition("\t")
    if not path.exists() or not Path(source).parent.is_dir():
        return False
    path.rename(source)
    if kept:
        shutil.copyfile(kept, path)
    return True


def _spoil(path: Path, synced: int, rng: random.Random) -> bool:
    """Lose what was written to a file since it was synced."""
    if not path.is_file():
        return False
    size, kind = path.stat().st_size, rng.choice(("there", "zeros", "cut", "cut"))
    if kind == "there" or size <= synced:
        return False
    with path.open("r+b") as file:
        file.truncate(synced)
        if kind == "zeros":
            file.truncate(size)
    return True
