"""Images by the words a user has for them: files and folders, or places in the run's own data.

`cat.png`, a folder and `-` mean what they mean to `saccade predict`; `test:17` is image 17 of the
run's test set, `val:0-4` are the first five of its validation set. `./test:17` is a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from saccade.data import DatasetInfo, Split, Splits, load_splits
from saccade.errors import ConfigError, DataError
from saccade.runs import RunFolder
from saccade.train.pictures import find_pictures, normalise, open_picture

__all__ = ["Album", "Picture", "check_same_data", "pixels_at", "shown"]

PLACE = re.compile(r"(train|val|test):(\d+)(?:-(\d+))?")


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
        return load_splits(self.run.config().data)

    def find(self, words: Iterable[str]) -> list[str]:
        """One name an image: folders and ranges are spread out, what does not exist is refused."""
        found: list[str] = []
        for word in words:
            place = PLACE.fullmatch(word)
            found += find_pictures([word]) if place is None else self._places(word, *place.groups())
        return found

    def open(self, name: str) -> Picture:
        """Read the image of one name that `find` gave."""
        place = PLACE.fullmatch(name)
        if place is None:
            return Picture(name, open_picture(name, self.info))
        split: Split = getattr(self.splits, place[1])
        index = int(place[2])
        image = normalise(pixels_at(split, index), self.info)
        return Picture(name, image, int(split.labels[index]))

    def _places(self, word: str, part: str, first: str, last: str | None) -> list[str]:
        count = len(getattr(self.splits, part))
        wanted = range(int(first), int(last or first) + 1)
        if not wanted or wanted[-1] >= count:
            has = f"has images 0 to {count - 1}" if count else "is empty"
            raise DataError(f"IMAGE {word!r}: the {part} set of the run's data {has}")
        return [f"{part}:{index}" for index in wanted]


def check_same_data(albums: Sequence[Album], names: Iterable[str]) -> None:
    """Refuse places in the data where the runs do not share it: they would not be one image."""
    places = [name for name in names if PLACE.fullmatch(name)]
    first, *others = (album.run.config().data for album in albums)
    if places and any(other != first for other in others):
        raise ConfigError(
            f"IMAGE {places[0]!r} is not one image: the runs have other data sets or splits; "
            "give image files"
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
