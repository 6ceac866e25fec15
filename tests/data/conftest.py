"""Small data sets that the tests of this room share."""

import pytest
import torch

from saccade.data import DatasetInfo, Split
from saccade.data.normalization import channel_statistics
from tests.cli.conftest import saccade

__all__ = ["saccade", "toy"]


@pytest.fixture(scope="session")
def toy() -> tuple[Split, DatasetInfo]:
    """37 random color images, 9 x 7, in 3 classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (37, 3, 9, 7), generator=generator, dtype=torch.uint8)
    labels = torch.arange(37) % 3
    mean, std = channel_statistics(images)
    info = DatasetInfo("toy", 3, ("a", "b", "c"), (9, 7), 3, mean, std)
    return Split(labels, images), info
