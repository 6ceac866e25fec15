"""Labels as files hold them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saccade.errors import DataError

__all__ = ["label_tensor"]

_LARGEST = 2**31


def label_tensor(name: str, values: object) -> Tensor:
    """Labels as int64 (N,).

    Args:
        name: Of the file, for messages.
        values: What it holds.

    Raises:
        DataError: This is not a list of whole numbers.
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list) or not all(map(_is_label, values)):
        raise DataError(f"{name}: wants a list of whole numbers as labels")
    return torch.tensor(values, dtype=torch.int64)


def _is_label(value: object) -> bool:
    return type(value) is int and abs(value) < _LARGEST
