"""How much a program of each kernel takes at a time, by the width of a row.

Chosen from what ptxas makes of the kernels for sm_90: none of them spills.
"""

from typing import NamedTuple

__all__ = ["SUMMED_COLUMNS", "WARPS", "Tile", "Walk", "tile_for", "walk_for"]

WARPS = 8
SUMMED_COLUMNS = 16  # of a program that adds up the shares of the others

_ELEMENTS = 2048  # of a tile: 8 for each thread
_REGISTERS = 1 << 16  # of a multiprocessor
_MULTIPROCESSORS = 128  # to be filled; an H200 has 132
_FEWEST_STEPS = 4  # of a walk, or adding up costs more than it spares


class Tile(NamedTuple):
    """Whole rows that a program holds in registers; a warp reads a piece of one at a time."""

    rows: int
    columns: int
    piece: int
    lane: int


class Walk(NamedTuple):
    """How the rows are shared among programs that are all resident at once."""

    programs: int
    span: int
    registers: int


def tile_for(width: int, itemsize: int) -> Tile:
    """The rows that a program has in flight, of a stream with numbers of so many bytes."""
    columns = 1 << (width - 1).bit_length()
    lane = min(16 // itemsize, columns)
    return Tile(max(1, _ELEMENTS // columns), columns, min(32 * lane, columns), lane)


def walk_for(rows: int, width: int, step: int) -> Walk:
    """The spans of rows that programs walk over, `step` at a time."""
    resident = _resident(width)
    steps = -(-rows // step)
    span = step * max(_FEWEST_STEPS, -(-steps // (resident * _MULTIPROCESSORS)))
    registers = _REGISTERS // (32 * WARPS * resident) // 8 * 8
    return Walk(-(-rows // span), span, registers)


def _resident(width: int) -> int:
    """Programs to a multiprocessor: rows that several warps share, or read singly, take more."""
    if width % 16:
        return 2
    return 4 if width <= _ELEMENTS // WARPS else 3
