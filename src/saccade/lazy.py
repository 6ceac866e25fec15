"""Lazy packages: the module of a name is imported when the name is first used.

A table in such a package (models, attentions, data sets) can be listed without loading torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

__all__ = ["lazy_names"]


def lazy_names(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a lazy package.

    Args:
        package: Full name of the package.
        exports: For each module of the package, the names that the package exports from it.
    """
    module_of = {name: module for module, names in exports.items() for name in names}

    def find(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    def names() -> list[str]:
        return list(sys.modules[package].__all__)

    return find, names
