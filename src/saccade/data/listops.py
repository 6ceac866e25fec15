"""ListOps: expressions of operators on lists of digits; the class is the value of the expression.

Two tasks, which are never mixed and whose accuracies must not be compared:

- `lra`, of the Long Range Arena (arXiv:2011.04006): a node is an operator with probability 1/4
  while its depth is below 10, else a digit. An operator (MIN, MAX, MED, SM) has 2 to 10 arguments.
  MED is the integer part of the median, SM the sum modulo 10. Expressions of 500 < length < 2000
  are kept.
- `taylorshift`, of TaylorShift (arXiv:2403.02920): a length from 500 to 2000 is drawn, and an
  expression is grown to it by replacing random digits with operators, then by adding arguments.
  FIRST and LAST are operators too, and MED is the upper median.

The length counts digits, and operators with their closing brackets as two, so it is the number of
symbols of a sequence. Brackets that only group are left out, as is usual for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from saccade.data.randomness import COUNTERS, numpy_bits

__all__ = ["OPERATORS", "SYMBOLS", "evaluate", "listops"]

Version = Literal["lra", "taylorshift"]
OPERATORS: dict[Version, tuple[str, ...]] = {
    "lra": ("MIN", "MAX", "MED", "SM"),
    "taylorshift": ("MIN", "MAX", "MED", "FIRST", "LAST", "SM"),
}
SYMBOLS = (
    "<pad>",
    *map(str, range(10)),
    *(f"[{name}" for name in ("MIN", "MAX", "MED", "SM", "FIRST", "LAST")),
    "]",
)
"""Names of the symbols; a sequence holds their positions here."""

_DIGIT, _END = 1, len(SYMBOLS) - 1
_CODES = {name: SYMBOLS.index(f"[{name}") for name in OPERATORS["taylorshift"]}
_BLOCK = 2048
_MAX_ARGS, _MAX_DEPTH = 10, 10
_MIN_LENGTH, _MAX_LENGTH = 500, 2000


def listops(
    version: Version, key: int, start: int, stop: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Items `start` to `stop` of a part: symbols (R, 2000), padded with 0, lengths and values."""
    make = _random_tree if version == "lra" else _grown_tree
    symbols = np.zeros((stop - start, _MAX_LENGTH), np.uint8)
    lengths, values = np.zeros((2, stop - start), np.int64)
    for row, index in enumerate(range(start, stop)):
        found = make(_stream(key, index))
        symbols[row, : len(found)] = found
        lengths[row], values[row] = len(found), evaluate(found, version)
    return symbols, lengths, values


def _stream(key: int, index: int) -> Iterator[int]:
    """The random 64-bit numbers of an item."""
    first = index * COUNTERS
    while True:
        counter = np.arange(first, first + _BLOCK, dtype=np.uint64)
        yield from numpy_bits(key, counter).tolist()
        first += _BLOCK


def _random_tree(stream: Iterator[int]) -> list[int]:
    """An expression of the Long Range Arena, as symbols; others are drawn until one is kept."""
    codes = [_CODES[name] for name in OPERATORS["lra"]]
    while True:
        symbols: list[int] = []
        missing: list[int] = []  # arguments that open operators still lack
        while True:
            draw = next(stream)
            if len(missing) < _MAX_DEPTH - 1 and draw & 3 == 0:
                symbols.append(codes[(draw >> 2) & 3])
                missing.append(2 + (draw >> 8) % (_MAX_ARGS - 1))
                continue
            symbols.append(_DIGIT + (draw >> 8) % 10)
            while missing:
                missing[-1] -= 1
                if missing[-1]:
                    break
                missing.pop()
                symbols.append(_END)
            if not missing or len(symbols) >= _MAX_LENGTH:
                break
        if not missing and _MIN_LENGTH < len(symbols) < _MAX_LENGTH:
            return symbols


def _grown_tree(stream: Iterator[int]) -> list[int]:
    """An expression of TaylorShift, as symbols.

    DEVIATION: a digit at a depth of more than 10 is never replaced; the published code measures the
    depth in two ways and sometimes goes deeper.
    """
    names = OPERATORS["taylorshift"]
    length = _MIN_LENGTH + next(stream) % (_MAX_LENGTH - _MIN_LENGTH + 1)
    nodes: list[tuple[int, list[int]]] = []  # operator, and arguments: digits or ~(node)
    places: list[tuple[int, int, int]] = []  # node, argument and depth of digits that may grow

    def add_node(room: int, depth: int) -> int:
        count = 2 + next(stream) % (min(room - 2, _MAX_ARGS) - 1)
        nodes.append((_CODES[names[next(stream) % 6]], [next(stream) % 10 for _ in range(count)]))
        if depth <= _MAX_DEPTH:
            places.extend((len(nodes) - 1, argument, depth) for argument in range(count))
        return count + 2

    size = add_node(length, 1)
    while size < length - 4 and places:
        chosen = next(stream) % len(places)
        places[chosen], places[-1] = places[-1], places[chosen]
        node, argument, depth = places.pop()
        nodes[node][1][argument] = ~len(nodes)
        size += add_node(length - size, depth + 1) - 1
    open_slots = [n for n, (_, own) in enumerate(nodes) for _ in range(_MAX_ARGS - len(own))]
    if length - size > len(open_slots):
        return _grown_tree(stream)
    for _ in range(length - size):
        chosen = next(stream) % len(open_slots)
        open_slots[chosen], open_slots[-1] = open_slots[-1], open_slots[chosen]
        nodes[open_slots.pop()][1].append(next(stream) % 10)
    symbols: list[int] = []
    _write(nodes, 0, symbols)
    return symbols


def _write(nodes: list[tuple[int, list[int]]], number: int, symbols: list[int]) -> None:
    operator, arguments = nodes[number]
    symbols.append(operator)
    for argument in arguments:
        if argument < 0:
            _write(nodes, ~argument, symbols)
        else:
            symbols.append(_DIGIT + argument)
    symbols.append(_END)


def evaluate(symbols: list[int], version: Version) -> int:
    """The value of an expression."""
    operators: list[int] = []
    lists: list[list[int]] = [[]]
    for symbol in symbols:
        if symbol == _END:
            value = _apply(operators.pop(), lists.pop(), version)
            lists[-1].append(value)
        elif symbol >= _DIGIT + 10:
            operators.append(symbol)
            lists.append([])
        else:
            lists[-1].append(symbol - _DIGIT)
    return lists[0][0]


def _apply(operator: int, values: list[int], version: Version) -> int:
    name = SYMBOLS[operator][1:]
    if name == "MIN":
        return min(values)
    if name == "MAX":
        return max(values)
    if name == "SM":
        return sum(values) % 10
    if name == "FIRST":
        return values[0]
    if name == "LAST":
        return values[-1]
    ordered, middle = sorted(values), len(values) // 2
    if version == "taylorshift" or len(values) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2
