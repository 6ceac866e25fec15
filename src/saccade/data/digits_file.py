"""scikit-learn's digits, read from the file that it installs.

Importing scikit-learn to read them would take longer than a short run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_digits"]


def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the levels 0..16 of all pixels, (1797, 64), and the labels."""
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    levels, labels = load_digits(return_X_y=True)
    return levels, labels.astype(np.int64)
