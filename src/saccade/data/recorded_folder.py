"""Match the files of a folder of images or texts with the record of a run's split."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.folder import FolderSource, read_folder_parts
from saccade.data.splits import LeftOut, NamedFiles, Split, select
from saccade.data.text_folder import read_text_parts

__all__ = ["RecordedFolder", "load_recorded_folder"]


@dataclass(frozen=True)
class RecordedFolder:
    """A folder's images or texts, matched with the record of a split.

    Attributes:
        parts: Existing images of each recorded part, in the record's order. Texts that cannot be
            read are left out.
        gone: Recorded names of each part that no longer exist.
        new: Names of images that are not in the record, neither in a part nor as unused.
        class_names: The folder's classes.
    """

    parts: dict[str, Split]
    gone: dict[str, list[str]]
    new: list[str]
    class_names: tuple[str, ...]


def load_recorded_folder(
    config: DataConfig, record: Mapping[str, Sequence[str]], unused: Iterable[str] = ()
) -> RecordedFolder:
    """Load the folder at `data.root` with the split of a record.

    Args:
        config: The folder and its options.
        record: Names by part.
        unused: Names of files that are in no part.

    Raises:
        ConfigError, DataError: See `load_folder` and `load_text_folder`.
    """
    is_text = config.name == "text_folder"
    parts, classes = (read_text_parts if is_text else read_folder_parts)(config)
    whole = _joined(list(parts.values()))
    assert whole.files is not None
    places = {_normal(name): place for place, name in enumerate(whole.files.names)}
    bad = {_normal(item.name): item for item in whole.left_out}
    found: dict[str, Split] = {}
    gone: dict[str, list[str]] = {}
    for part, names in record.items():
        there = [name for name in names if _normal(name) in places]
        gone[part] = [n for n in names if _normal(n) not in places and _normal(n) not in bad]
        index = torch.tensor([places[_normal(name)] for name in there], dtype=torch.int64)
        left_out = tuple(replace(bad[_normal(n)], name=n) for n in names if _normal(n) in bad)
        found[part] = _renamed(select(whole, index), tuple(there), left_out)
    known = {_normal(name) for names in (*record.values(), unused) for name in names}
    present = [*whole.files.names, *(item.name for item in whole.left_out)]
    new = [name for name in present if _normal(name) not in known]
    return RecordedFolder(found, gone, new, classes)


def _joined(parts: Sequence[Split]) -> Split:
    """One split with the files of all of them."""
    labels = torch.cat([part.labels for part in parts])
    left_out = tuple(item for part in parts for item in part.left_out)
    sources = [part.source for part in parts if isinstance(part.source, FolderSource)]
    if sources:
        paths = tuple(path for source in sources for path in source.paths)
        names = tuple(name for source in sources for name in source.names)
        return Split(labels, source=replace(sources[0], paths=paths, names=names))
    files = [part.named for part in parts if part.named is not None]
    named = NamedFiles(
        tuple(path for one in files for path in one.paths),
        tuple(name for one in files for name in one.names),
    )
    images, lengths = (_cat(parts, name) for name in ("images", "lengths"))
    return Split(labels, images, lengths=lengths, named=named, left_out=left_out)


def _cat(parts: Sequence[Split], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in parts])


def _renamed(split: Split, names: tuple[str, ...], left_out: tuple[LeftOut, ...]) -> Split:
    """The split with its files named as in the record."""
    if isinstance(split.source, FolderSource):
        return replace(split, source=replace(split.source, names=names))
    assert split.named is not None
    return replace(split, named=replace(split.named, names=names), left_out=left_out)


def _normal(name: str) -> str:
    """Normalize a name, since file systems store accented letters in different Unicode forms."""
    return unicodedata.normalize("NFC", name)
