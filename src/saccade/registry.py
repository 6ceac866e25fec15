"""Tables of named entries, such as attentions, models and data sets."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from saccade.errors import ConfigError, UnknownNameError

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to entries that refuses duplicates and suggests near matches.

    Args:
        kind: Singular noun for an entry, such as `attention`, for error messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> T:
        """Add `entry` under `name` and return it; raise if the name is taken."""
        if name in self._entries:
            raise ConfigError(f"{self.kind} {name!r} is already registered; choose another name")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def names(self, pattern: str = "*") -> list[str]:
        """The names that match a shell pattern such as `taylor*`, sorted."""
        return sorted(name for name in self._entries if fnmatchcase(name, pattern))
