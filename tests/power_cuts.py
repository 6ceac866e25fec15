"""Every state that a folder may be in after a power failure, from a recording of what was synced.

What a process writes reaches the disk when it is synced: the content of a file by a sync of the
file, the names in a folder by a sync of the folder. What was not synced may have reached it, or
not: a file may have its old content, or its new length and zeros in place of the content; a folder
may have its old names or its new ones. A killed process loses nothing that it has written.
"""

import os
import resource
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import pytest

Content = Literal["live", "synced", "zeros"]
Names = Literal["live", "synced", "synced above", "synced below"]

Tree = dict[str, bytes | None]
"""Files by path; folders, which end in a slash, have no content."""


@dataclass
class Snapshot:
    """A folder as programs see it, and what of it is on the disk for certain.

    Attributes:
        names: The entries of each folder, by its inode: name -> (inode, whether it is a folder).
        contents: Of each file, by its inode.
        synced_names: As `names`, at the last sync of each folder.
        synced_contents: As `contents`, at the last sync of each file.
        top: The folder's inode.
    """

    names: dict[int, dict[str, tuple[int, bool]]]
    contents: dict[int, bytes]
    synced_names: dict[int, dict[str, tuple[int, bool]]]
    synced_contents: dict[int, bytes]
    top: int

    def tree(self, names: Names, content: Content) -> Tree:
        """The folder that a crash leaves, with what was not synced kept or lost."""
        return dict(self._walk(self.top, "", names, content))

    def _walk(
        self, inode: int, path: str, names: Names, content: Content
    ) -> Iterator[tuple[str, bytes | None]]:
        yield path, None
        lost = names == "synced" or names == ("synced below" if path else "synced above")
        known = self.synced_names if lost else self.names
        for name, (inner, is_folder) in known.get(inode, {}).items():
            if is_folder:
                yield from self._walk(inner, f"{path}{name}/", names, content)
            else:
                yield f"{path}{name}", self._content(inner, content)

    def _content(self, inode: int, content: Content) -> bytes:
        live = self.contents.get(inode)
        synced = self.synced_contents.get(inode, b"")
        if content == "live" and live is not None:
            return live
        if content == "zeros" and live is not None and len(live) > len(synced):
            return synced + bytes(len(live) - len(synced))
        return synced


@dataclass
class Recorder:
    """Takes a snapshot of a folder before each sync, and one at the end."""

    folder: Path
    snapshots: list[Snapshot] = field(default_factory=list)
    _names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)

    def look(self) -> None:
        """Take a snapshot."""
        if not self.folder.exists():
            return
        names: dict[int, dict[str, tuple[int, bool]]] = {}
        contents: dict[int, bytes] = {}
        for folder in (self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())):
            entries = {}
            for path in folder.iterdir():
                found = path.lstat()
                entries[path.name] = (found.st_ino, path.is_dir())
                self._keep(path, found.st_ino)
                if not path.is_dir():
                    contents[found.st_ino] = path.read_bytes()
            names[folder.stat().st_ino] = entries
        top = self.folder.stat().st_ino
        snapshot = Snapshot(names, contents, dict(self._names), dict(self._contents), top)
        self.snapshots.append(snapshot)

    def _keep(self, path: Path, inode: int) -> None:
        """Have the number of a file that is deleted given to no other."""
        if inode not in self._kept:
            self._kept[inode] = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()

    def note_sync(self, descriptor: int) -> None:
        """A file or folder has been synced."""
        found = os.fstat(descriptor)
        last = self.snapshots[-1] if self.snapshots else None
        if last is None:
            return
        if stat.S_ISDIR(found.st_mode):
            if found.st_ino in last.names:
                self._names[found.st_ino] = last.names[found.st_ino]
        elif found.st_ino in last.contents:
            self._contents[found.st_ino] = last.contents[found.st_ino]

    def crashes(self, last: int | None = None) -> Iterator[Tree]:
        """Every state that a crash can leave, each once; of the last snapshots alone, if said."""
        seen: list[Tree] = []
        for snapshot in self.snapshots[-(last or 0) :]:
            for names in get_args(Names):
                for content in get_args(Content):
                    tree = snapshot.tree(names, content)
                    if tree not in seen:
                        seen.append(tree)
                        yield tree


def restore(tree: Tree, out: Path) -> None:
    """Make the folder of a state."""
    shutil.rmtree(out, ignore_errors=True)
    for path, content in tree.items():
        if content is None:
            (out / path).mkdir()
        else:
            (out / path).write_bytes(content)


@contextmanager
def recorded(folder: Path) -> Iterator[Recorder]:
    """Record the syncs of this process for the length of a block."""
    recorder, sync = Recorder(folder), os.fsync
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65536), most))

    def note(descriptor: int) -> None:
        recorder.look()
        sync(descriptor)
        recorder.note_sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", note)
        try:
            yield recorder
            recorder.look()
        finally:
            recorder.close()
