"""Names and one-line titles of the data sets, without importing torch; see also `catalog`."""

from __future__ import annotations

from fnmatch import fnmatchcase

__all__ = ["TITLES", "list_datasets"]

TITLES = {
    "digits": "1797 handwritten digits, 8 x 8, 10 classes (scikit-learn; no download)",
    "shapes": "colored shapes drawn at any resolution, 8 classes (no download)",
    "folder": "your folder at data.root: one sub-folder a class, or train/, val/, test/",
    "text_folder": "your text files at data.root, as bytes: one sub-folder a class",
    "listops_lra": "ListOps of the Long Range Arena: four operators, 10 classes (generated)",
    "listops_taylorshift": "ListOps of TaylorShift: six operators, 10 classes (generated)",
    "pathfinder": "are two discs joined by a path? 32 or 128 px, 2 classes (generated)",
    "recall": "the value of a key among pairs of keys and values (generated)",
    "cifar10_pixel": "CIFAR-10 as 1,024 gray levels, 10 classes",
    "cifar10": "CIFAR-10: 60000 photographs, 32 x 32, 10 classes",
    "cifar100": "CIFAR-100: 60000 photographs, 32 x 32, 100 classes",
    "mnist": "MNIST: 70000 handwritten digits, 28 x 28, 10 classes",
    "fashion_mnist": "Fashion-MNIST: 70000 pieces of clothing, 28 x 28, 10 classes",
}


def list_datasets(pattern: str = "*") -> list[str]:
    """Return the sorted names of the data sets that match a shell pattern."""
    return sorted(name for name in TITLES if fnmatchcase(name, pattern))
