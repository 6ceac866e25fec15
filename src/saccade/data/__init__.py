"""Data sets to batches on the device: splits, augmentation, fetching, checks of a user's folder."""

from saccade.data.catalog import DATASETS, list_datasets, load_splits
from saccade.data.loader import Batch, Loader, make_loader
from saccade.data.shapes import shapes_masks
from saccade.data.splits import DatasetInfo, Split, Splits, stratified_split

__all__ = [
    "DATASETS",
    "Batch",
    "DatasetInfo",
    "Loader",
    "Split",
    "Splits",
    "list_datasets",
    "load_splits",
    "make_loader",
    "shapes_masks",
    "stratified_split",
]
