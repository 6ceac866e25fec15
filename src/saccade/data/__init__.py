"""Data sets to batches on the device: splits, augmentation, fetching, checks of a user's folder."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.data.catalog import DATASETS, load_splits
    from saccade.data.loader import Batch, Loader, make_loader
    from saccade.data.shapes import shapes_masks
    from saccade.data.splits import DatasetInfo, Split, Splits, stratified_split
    from saccade.data.titles import list_datasets
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "catalog": ("DATASETS", "load_splits"),
            "loader": ("Batch", "Loader", "make_loader"),
            "shapes": ("shapes_masks",),
            "splits": ("DatasetInfo", "Split", "Splits", "stratified_split"),
            "titles": ("list_datasets",),
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
    "shapes_masks",
    "stratified_split",
]
