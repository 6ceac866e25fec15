"""Load data sets as batches on the device: splits, augmentation, fetching, folder checks."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.data.datasets import DATASETS, list_datasets, load_splits
    from saccade.data.loader import Batch, Loader, make_loader
    from saccade.data.shapes import shapes_masks
    from saccade.data.sources import sample_images
    from saccade.data.splits import DatasetInfo, Split, Splits
    from saccade.data.stratify import stratified_split
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "datasets": ("DATASETS", "list_datasets", "load_splits"),
            "loader": ("Batch", "Loader", "make_loader"),
            "sources": ("sample_images",),
            "shapes": ("shapes_masks",),
            "splits": ("DatasetInfo", "Split", "Splits"),
            "stratify": ("stratified_split",),
        },
    )

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
    "sample_images",
    "shapes_masks",
    "stratified_split",
]
