"""Shapes (B, H, N, D), passes, and grids of shapes to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from saccade.errors import ConfigError, UnknownNameError

__all__ = ["DTYPES", "PASSES", "DTypeName", "Grid", "Pass", "Shape", "check_choice", "check_passes"]

Pass = Literal["forward", "training"]
DTypeName = Literal["float64", "float32", "bfloat16", "float16"]

PASSES: tuple[Pass, ...] = get_args(Pass)
DTYPES: tuple[DTypeName, ...] = get_args(DTypeName)

MAX_HEAD_DIM = 256
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Shape:
    """The shape of one attention call.

    Attributes:
        tokens: N, the number of queries and of keys.
        head_dim: D, the columns of queries, keys and values.
    """

    batch: int
    heads: int
    tokens: int
    head_dim: int

    def __str__(self) -> str:
        return f"D={self.head_dim} N={self.tokens} B={self.batch} H={self.heads}"


@dataclass(frozen=True)
class Grid:
    """Shapes, the mechanisms to measure on them, and the quantities to measure.

    Attributes:
        mechanisms: Names from `saccade.bench.mechanisms`, as `name` or `name/backend`.
        batch: B if `budget` is None.
        budget: Constant B H N: each N has B = budget / (N H).
        memory: True to measure peak memory. On the CPU each value takes a fresh process.
    """

    mechanisms: tuple[str, ...]
    tokens: tuple[int, ...]
    head_dims: tuple[int, ...]
    heads: int = 8
    batch: int = 1
    budget: int | None = None
    passes: tuple[Pass, ...] = PASSES
    memory: bool = True

    def __post_init__(self) -> None:
        _check_sizes("n", self.tokens)
        _check_sizes("d", self.head_dims, MAX_HEAD_DIM)
        _check_sizes("heads", (self.heads,))
        _check_sizes("batch", (self.batch,))
        for name in self.passes:
            check_choice("pass", name, PASSES)
        if not self.mechanisms or not self.passes:
            raise ConfigError("nothing to measure: give at least one mechanism and one pass")
        for tokens in self.tokens if self.budget is not None else ():
            self._batch(tokens)

    def shapes(self) -> list[Shape]:
        """All shapes of the grid, with D in the outer loop."""
        return [
            Shape(self._batch(tokens), self.heads, tokens, head_dim)
            for head_dim in self.head_dims
            for tokens in self.tokens
        ]

    def _batch(self, tokens: int) -> int:
        if self.budget is None:
            return self.batch
        batch, rest = divmod(self.budget, tokens * self.heads)
        if rest or batch < 1:
            raise ConfigError(
                f"tokens must be a multiple of N H = {tokens} x {self.heads}, got {self.budget}; "
                "B is tokens / (N H)"
            )
        return batch


def check_choice(kind: str, name: str, known: tuple[Name, ...]) -> Name:
    """The name; raises `UnknownNameError` if it is not known."""
    for own in known:
        if own == name:
            return own
    raise UnknownNameError(kind, name, known)


def _check_sizes(name: str, sizes: tuple[int, ...], largest: int | None = None) -> None:
    if not sizes:
        raise ConfigError(f"{name} must have at least one value, got none")
    for size in sizes:
        if size < 1 or (largest is not None and size > largest):
            limit = "" if largest is None else f" and at most {largest}"
            raise ConfigError(f"{name} must be at least 1{limit}, got {size}")


def check_passes(names: Sequence[str]) -> list[Pass]:
    """The named passes in their order; raises for an unknown name."""
    chosen = {check_choice("pass", name, PASSES) for name in names}
    return [name for name in PASSES if name in chosen]
