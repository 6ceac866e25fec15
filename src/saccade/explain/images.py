"""Images named on the command line: files, folders, or images of the run's own data.

`cat.png`, a folder and `-` work as in `saccade predict`. `test:17` is image 17 of the run's test
set, `val:0-4` are the first five images of its validation set. `./test:17` is a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from saccade.data import DatasetInfo, Split
from saccade.data.folder_files import find_pictures
from saccade.errors import ConfigError, DataError
from saccade.runs import RunFolder
from saccade.train.image_inputs import normalize, open_picture
from saccade.train.run_data import check_image, load_run_data
from saccade.train.saved_model import data_of, load_saved_data

__all__ = ["Album", "Picture", "check_same_images", "denormalize", "pixels_at"]

PLACE = re.compile(r"(train|val|test):(\d+)(?:-(\d+))?")
LIKE_PLACE = re.compile(r"\w+:[-\w]*")


@dataclass(frozen=True)
class Picture:
    """A normalized image.

    Attributes:
        name: Its name on the command line, such as `test:17`.
        label: Index of its true class, if known.
    """

    name: str
    image: Tensor
    label: int | None = None


class Album:
    """The images that a trained model can be given.

    Args:
        run: The run, or the folder of `save_pretrained`, whose data names such as `test:17` refer
            to.
        info: Size and normalization of the images that its model expects.
    """

    def __init__(self, run: RunFolder | Path, info: DatasetInfo) -> None:
        self.run, self.info = run, info
        self._parts: dict[str, Split] = {}

    def part(self, name: str) -> Split:
        """A part of the run's data: `train`, `val` or `test`."""
        if name not in self._parts:
            if isinstance(self.run, RunFolder):
                splits = load_run_data(self.run, parts=(name,), contents=False)
            else:
                splits = load_saved_data(self.run, self.info, data_of(self.run))
            self._parts[name] = getattr(splits, name)
        return self._parts[name]

    def find(self, words: Iterable[str]) -> list[str]:
        """Expand folders and ranges to one name per image; raise if one does not exist."""
        found: list[str] = []
        for word in words:
            place = PLACE.fullmatch(word)
            found += self._files(word) if place is None else self._places(word, *place.groups())
        return found

    def open(self, name: str) -> Picture:
        """Read the image of a name that `find` returned."""
        if not PLACE.fullmatch(name):
            return Picture(name, open_picture(name, self.info))
        pixels, label = self.look_up(name)
        return Picture(name, normalize(pixels, self.info), label)

    def look_up(self, place: str) -> tuple[Tensor, int]:
        """The uint8 pixels (C, H, W) and the class of an image of the run's data."""
        [place] = self.find([place])
        part, index = place.split(":")
        split = self.part(part)
        if isinstance(self.run, RunFolder):
            check_image(self.run, part, int(index), split)
        return pixels_at(split, int(index)), int(split.labels[int(index)])

    def _files(self, word: str) -> list[str]:
        if LIKE_PLACE.fullmatch(word) and not Path(word).exists():
            raise DataError(
                "IMAGE must be a file, a folder or an image of the run's data such as train:0, "
                f"val:0 or test:0-4, got {word!r}"
            )
        return find_pictures([word])

    def _places(self, word: str, part: str, first: str, last: str | None) -> list[str]:
        count = len(self.part(part))
        wanted = range(int(first), int(last or first) + 1)
        if not wanted:
            raise DataError(f"IMAGE must be a range in ascending order, got {word!r}")
        if wanted[-1] >= count:
            has = f"has images 0 to {count - 1}" if count else "is empty"
            raise DataError(
                f"IMAGE must be in the {part} set of the run's data, which {has}, got {word!r}"
            )
        return [f"{part}:{index}" for index in wanted]


def check_same_images(albums: Sequence[Album], names: Iterable[str]) -> None:
    """Raise if a name such as `test:17` stands for different images in the runs."""
    first, *others = albums
    for name in names if others else ():
        if PLACE.fullmatch(name):
            pixels, _ = first.look_up(name)
            if not all(torch.equal(pixels, album.look_up(name)[0]) for album in others):
                raise ConfigError(
                    f"IMAGE must be the same image for both runs, got {name!r}, where their data "
                    "differs; give image files"
                )


def pixels_at(split: Split, index: int) -> Tensor:
    """Image `index` of a split, uint8 (C, H, W)."""
    if split.images is not None:
        return split.images[index]
    assert split.source is not None
    return split.source.read(index)


def denormalize(image: Tensor, info: DatasetInfo) -> Tensor:
    """Undo the normalization of an image (..., C, H, W); values are in 0..1."""
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (info.mean, info.std))
    return (image.cpu() * std + mean).clamp(0, 1)
