"""scikit-learn's 1797 handwritten digits, 8 x 8, which need no download."""

from __future__ import annotations

import torch

from saccade.data.cache import Arrays
from saccade.data.digits_file import read_digits
from saccade.data.splits import TEST_FRACTION, TEST_SEED, stratified_split

__all__ = ["load_digits"]


def load_digits() -> Arrays:
    """Load the digits with a fixed stratified test set; levels 0..16 are scaled to 0..255."""
    pixels, targets = read_digits()
    levels = torch.from_numpy(pixels).mul(255 / 16).round().to(torch.uint8)
    images = levels.reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(targets)
    train, test = stratified_split(labels, TEST_FRACTION, TEST_SEED)
    names = tuple(str(digit) for digit in range(10))
    return Arrays(images[train], labels[train], images[test], labels[test], names)
