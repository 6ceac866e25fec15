"""Check and convert labels that were read from files."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saccade.errors import DataError

__all__ = ["label_tensor"]

_LARGEST = 2**31


def label_tensor(name: str, values: object) -> Tensor:
    """Convert labels to int64 (N,).

    Args:
        name: Name of the file, for error messages.
        values: The labels in the file.

    Raises:
        DataError: The labels are not a list of integers.
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list) or not all(map(_is_label, values)):
        raise DataError(f"{name}: labels must be a list of whole numbers")
    return torch.tensor(values, dtype=torch.int64)


def _is_label(value: object) -> bool:
    return type(value) is int and abs(value) < _LARGEST
