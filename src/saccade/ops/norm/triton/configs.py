"""How much a program of each kernel takes at a time, by the width of a row.

Chosen by timing at 256 columns on an H200 (docs/log.md), where nothing is spilled. At other widths
Triton 3.6 spills at most 16 bytes, 3.9 nothing.
"""

from typing import NamedTuple

__all__ = ["SUMMED_COLUMNS", "Tile", "tile_for", "walk_for"]

SUMMED_COLUMNS = 8  # of a program that adds up the partial sums of the others

_MULTIPROCESSORS = 128  # to be filled; an H200 has 132
_RESIDENT_WARPS = 16  # of a multiprocessor, that walk over rows
_MIN_STEPS = 4  # of a walk, or adding up costs more than it spares


class Tile(NamedTuple):
    """Whole rows that a program holds in registers."""

    rows: int
    columns: int
    warps: int


def tile_for(width: int) -> Tile:
    """The rows that a program has in flight."""
    columns = 1 << (width - 1).bit_length()
    return Tile(max(1, min(16, 512 // columns)), columns, max(1, columns // 512))


def walk_for(rows: int, tile: Tile) -> tuple[int, int]:
    """How many programs walk over the rows, and the span of each."""
    steps = -(-rows // tile.rows)
    resident = max(1, _RESIDENT_WARPS // tile.warps) * _MULTIPROCESSORS
    span = tile.rows * max(_MIN_STEPS, -(-steps // resident))
    return -(-rows // span), span
