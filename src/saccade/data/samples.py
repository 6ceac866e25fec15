"""A few real images that are installed with saccade, for lessons and examples; no download.

`cifar10_samples.png` has the first four test images of each class of CIFAR-10, without selection:
a column for each class, a row for each image.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saccade.data.sources import SOURCES

__all__ = ["sample_images"]

SIDE = 32


def sample_images() -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Forty test images of CIFAR-10, four of each class.

    Returns:
        Images, uint8 (40, 3, 32, 32), in the order of their classes; labels, int64 (40,); and the
        names of the classes.
    """
    names = SOURCES["cifar10"].class_names
    with (files("saccade.data") / "cifar10_samples.png").open("rb") as file, Image.open(file) as im:
        sheet = torch.from_numpy(np.array(im.convert("RGB")))  # (rows * 32, classes * 32, 3)
    rows = sheet.shape[0] // SIDE
    grid = sheet.reshape(rows, SIDE, len(names), SIDE, 3).permute(2, 0, 4, 1, 3)
    return grid.flatten(0, 1).contiguous(), torch.arange(len(names)).repeat_interleave(rows), names
