"""The test images of a data set as NumPy arrays, for programs that run without torch.

They are those of `load_splits` with default options: the official test set, the `test` (or `val`)
folder of a folder of images, or the fifth that is held out where there is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saccade.data.cache import cache_path, is_cached, read_cached_arrays
from saccade.data.datasets import DATASETS, DOWNLOADABLE
from saccade.data.folder_files import class_names, labeled_images, names_in, split_folders
from saccade.data.images import opened, read_square
from saccade.data.stratify import TEST_FRACTION, TEST_SEED, held_out, name_draws, stratified_sample
from saccade.errors import ConfigError, DataError, UnknownNameError

__all__ = ["HeldOut", "load_held_out", "read_digits"]


@dataclass(frozen=True)
class HeldOut:
    """The test images of a data set.

    Attributes:
        name: The data set.
        class_names: Names of the classes, in the order of the labels.
        labels: int64 (N,).
        pixels: uint8 (N, C, H, W), or None if the images are files.
        paths: The files, if the images are files.
    """

    name: str
    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    pixels: NDArray[np.uint8] | None = None
    paths: tuple[str, ...] = ()

    def batches(
        self, size: int, side: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Yield uint8 images (B, C, H, W) and their labels.

        Args:
            size: Images per batch.
            side: Side of the squares that files are cropped and resized to.
        """
        for start in range(0, len(self.labels), size):
            chosen = slice(start, start + size)
            if self.pixels is not None:
                yield self.pixels[chosen], self.labels[chosen]
            else:
                images = [_read(Path(path), side) for path in self.paths[chosen]]
                yield np.stack(images), self.labels[chosen]


def load_held_out(name: str, root: Path | None = None) -> HeldOut:
    """Load the test images of a data set.

    Args:
        name: `digits`, `folder`, or a set of the cache.
        root: The folder of the images, for `folder` only.

    Raises:
        UnknownNameError: There is no data set of this name.
        ConfigError: The data set needs torch, or `root` does not fit it.
        DataError: The data set is missing or broken.
    """
    known = ("digits", "folder", *DOWNLOADABLE)
    if name not in known and name not in DATASETS and ":" not in name:
        raise UnknownNameError("data set", name, known)
    if name not in known:
        raise ConfigError(
            f"data must be one of {', '.join(known)} for an ONNX file, got {name!r}, whose images "
            "are made with torch; evaluate the run instead"
        )
    if (root is not None) != (name == "folder"):
        raise ConfigError(f"data_root must be the folder with data='folder' only, got {root}")
    if root is not None:
        return _load_folder(root)
    return _load_digits() if name == "digits" else _load_cached(name)


def _read(path: Path, side: int) -> NDArray[np.uint8]:
    with opened(path) as image:
        return np.asarray(read_square(image, path, side)).transpose(2, 0, 1)


def _load_cached(name: str) -> HeldOut:
    path = cache_path(name)
    if not is_cached(path):
        raise DataError(
            f"data set {name!r} is not in the cache ({path}): run `saccade data fetch {name}`"
        )
    parts, names = read_cached_arrays(path)
    return HeldOut(name, names, parts["test_labels"].astype(np.int64), parts["test_images"])


def _load_digits() -> HeldOut:
    images, labels = read_digits()
    test = stratified_sample(labels, TEST_FRACTION, TEST_SEED, spared=1)
    return HeldOut("digits", tuple(map(str, range(10))), labels[test], images[test])


def _read_digit_rows() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The levels 0..16 of all pixels (1797, 64), and the labels, from scikit-learn's file.

    Importing scikit-learn to read them would take longer than a short run.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    return values, labels.astype(np.int64)


def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits: uint8 (N, 1, 8, 8), with levels 0..16 scaled to 0..255, and labels."""
    values, labels = _read_digit_rows()
    levels = (values * (255 / 16)).round().astype(np.uint8).reshape(-1, 1, 8, 8)
    return levels, labels


def _load_folder(root: Path) -> HeldOut:
    folders = split_folders(root)
    names = class_names(folders["train"])
    kept = folders.get("test", folders.get("val"))
    paths, found = labeled_images(kept or folders["train"], names)
    labels = np.array(found, dtype=np.int64)
    if kept is None:
        draws = name_draws(names_in(root, paths), "test", TEST_SEED)
        test = np.flatnonzero(held_out(labels, draws, TEST_FRACTION))
        paths, labels = [paths[i] for i in test], labels[test]
    return HeldOut("folder", names, labels, paths=tuple(paths))
