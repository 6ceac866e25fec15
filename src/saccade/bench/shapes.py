"""What is measured: shapes (B, H, N, D), the two passes, and grids of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from saccade.errors import ConfigError, UnknownNameError

__all__ = ["DTYPES", "PASSES", "DTypeName", "Grid", "Pass", "Shape", "check_choice"]

Pass = Literal["forward", "training"]
DTypeName = Literal["float64", "float32", "bfloat16", "float16"]

PASSES: tuple[Pass, ...] = get_args(Pass)
DTYPES: tuple[DTypeName, ...] = get_args(DTypeName)

LARGEST_HEAD_DIM = 256


@dataclass(frozen=True)
class Shape:
    """One attention problem.

    Attributes:
        batch: B.
        heads: H.
        tokens: N, of queries and of keys.
        head_dim: D, of queries, keys and values.
    """

    batch: int
    heads: int
    tokens: int
    head_dim: int

    def __str__(self) -> str:
        return f"D={self.head_dim} N={self.tokens} B={self.batch} H={self.heads}"


@dataclass(frozen=True)
class Grid:
    """Shapes to measure, the mechanisms to measure on them, and what to measure.

    Attributes:
        mechanisms: `name` or `name/backend` of `saccade.bench.mechanisms`.
        tokens: The values of N.
        head_dims: The values of D.
        heads: H.
        batch: B, where `budget` is None.
        budget: B H N, the same for every N: B = budget / (N H).
        passes: `forward`, `training` (forward and backward), or both.
        memory: Whether peak memory is measured. On the CPU each value takes a fresh process.
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
        _check_sizes("d", self.head_dims, LARGEST_HEAD_DIM)
        _check_sizes("heads", (self.heads,))
        _check_sizes("batch", (self.batch,))
        for name in self.passes:
            check_choice("pass", name, PASSES)
        if not self.mechanisms or not self.passes:
            raise ConfigError("nothing to measure: no mechanism or no pass was given")
        for tokens in self.tokens if self.budget is not None else ():
            self._batch(tokens)

    def shapes(self) -> list[Shape]:
        """Every shape of the grid, D outermost."""
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
                f"tokens={self.budget}; expected a multiple of N H = {tokens} x {self.heads}, "
                "since B = tokens / (N H)"
            )
        return batch


def check_choice(kind: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is not among the known ones."""
    if name not in known:
        raise UnknownNameError(kind, name, known)


def _check_sizes(name: str, sizes: tuple[int, ...], largest: int | None = None) -> None:
    if not sizes:
        raise ConfigError(f"{name}: no value was given")
    for size in sizes:
        if size < 1 or (largest is not None and size > largest):
            limit = "" if largest is None else f" and at most {largest}"
            raise ConfigError(f"{name}={size}; expected at least 1{limit}")
