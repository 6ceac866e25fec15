"""Images by the words a user has for them: files and folders, or places in the run's own data.

`cat.png`, a folder and `-` mean what they mean to `saccade predict`; `test:17` is image 17 of the
run's test set, `val:0-4` are the first five of its validation set. `./test:17` is a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from saccade.data import DatasetInfo, Split, Splits
from saccade.errors import ConfigError, DataError
from saccade.runs import RunFolder
from saccade.train.pictures import find_pictures, normalise, open_picture
from saccade.train.run_data import load_run_data

__all__ = ["Album", "Picture", "check_same_images", "pixels_at", "shown"]

PLACE = re.compile(r"(train|val|test):(\d+)(?:-(\d+))?")
LIKE_PLACE = re.compile(r"\w+:[-\w]*")


@dataclass(frozen=True)
class Picture:
    """An image as a model takes it.

    Attributes:
        name: What the user calls it.
        image: float (C, H, W), normalised.
        label: Its true class, where that is known.
    """

    name: str
    image: Tensor
    label: int | None = None


class Album:
    """The images that a run can be shown.

    Args:
        run: Whose data set the places are in.
        info: What its model expects of an image.
    """

    def __init__(self, run: RunFolder, info: DatasetInfo) -> None:
        self.run, self.info = run, info

    @cached_property
    def splits(self) -> Splits:
        """The run's data."""
        return load_run_data(self.run)

    def find(self, words: Iterable[str]) -> list[str]:
        """One name an image: folders and ranges are spread out, what does not exist is refused."""
        found: list[str] = []
        for word in words:
            place = PLACE.fullmatch(word)
            found += self._files(word) if place is None else self._places(word, *place.groups())
        return found

    def open(self, name: str) -> Picture:
        """Read the image of one name that `find` gave."""
        if not PLACE.fullmatch(name):
            return Picture(name, open_picture(name, self.info))
        pixels, label = self.look_up(name)
        return Picture(name, normalise(pixels, self.info), label)

    def look_up(self, place: str) -> tuple[Tensor, int]:
        """The uint8 pixels (C, H, W) and the class at a place in the data."""
        [place] = self.find([place])
        part, index = place.split(":")
        split: Split = getattr(self.splits, part)
        return pixels_at(split, int(index)), int(split.labels[int(index)])

    def _files(self, word: str) -> list[str]:
        if LIKE_PLACE.fullmatch(word) and not Path(word).exists():
            raise DataError(
                f"IMAGE {word!r}: neither a file nor an image of the run's data, which are called "
                "train:0, val:0 or test:0-4"
            )
        return find_pictures([word])

    def _places(self, word: str, part: str, first: str, last: str | None) -> list[str]:
        count = len(getattr(self.splits, part))
        wanted = range(int(first), int(last or first) + 1)
        if not wanted:
            raise DataError(f"IMAGE {word!r}: the range ends before it begins")
        if wanted[-1] >= count:
            has = f"has images 0 to {count - 1}" if count else "is empty"
            raise DataError(f"IMAGE {word!r}: the {part} set of the run's data {has}")
        return [f"{part}:{index}" for index in wanted]


def check_same_images(albums: Sequence[Album], names: Iterable[str]) -> None:
    """Refuse a place in the data that holds one image for one run and another for the next."""
    first, *others = albums
    for name in names if others else ():
        if PLACE.fullmatch(name):
            pixels, _ = first.look_up(name)
            if not all(torch.equal(pixels, album.look_up(name)[0]) for album in others):
                raise ConfigError(
                    f"IMAGE {name!r} is not the same image for both runs: their data differs; give "
                    "image files"
                )


def pixels_at(split: Split, index: int) -> Tensor:
    """Image `index` of a split, uint8 (C, H, W)."""
    if split.images is not None:
        return split.images[index]
    assert split.source is not None
    return split.source.read(index)


def shown(image: Tensor, info: DatasetInfo) -> Tensor:
    """A normalised image (..., C, H, W) in the 0..1 of a screen again."""
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (info.mean, info.std))
    return (image.cpu() * std + mean).clamp(0, 1)
