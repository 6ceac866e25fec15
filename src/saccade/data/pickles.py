"""Read pickles of plain values and NumPy arrays safely, without Python's unpickler.

A stack machine interprets the opcodes. It creates only numbers, strings, lists, dictionaries and
arrays whose bytes are in the file, so its memory is at most a few times the size of the file. It
accepts only the names that a pickled array consists of, and calls no function.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saccade.errors import DataError

__all__ = ["MAX_PICKLE_BYTES", "unpickle"]

MAX_PICKLE_BYTES = 512 << 20
_MAX_OPCODES = 2_000_000
_DTYPES = frozenset(("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"))
_ARRAY_PARTS = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
}
"""The names in a pickled array, and the part of an array that each stands for."""


def unpickle(content: bytes, name: str) -> Any:
    """Load a pickle of plain values and NumPy arrays.

    Args:
        content: The pickle.
        name: Name of the file, for error messages.

    Raises:
        DataError: The pickle is broken, too large, or holds other types.
    """
    if len(content) > MAX_PICKLE_BYTES:
        raise DataError(
            f"{name}: a pickle must be at most {MAX_PICKLE_BYTES:,} bytes, got {len(content):,}"
        )
    try:
        return _Machine(len(content)).run(content)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a broken pickle can raise almost any error
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{name}: not a readable pickle ({reason})") from None


@dataclass(frozen=True)
class _Named:
    """A name in the pickle; `part` is a value of `_ARRAY_PARTS`."""

    part: str


@dataclass
class _Dtype:
    """A dtype: NumPy's type code and the byte order."""

    letters: str
    order: str = "="


@dataclass
class _Array:
    """An array, created when its bytes are known."""

    value: np.ndarray | None = None


_MARK = object()


@dataclass
class _Machine:
    """A stack machine that reads one pickle; `size` is the number of bytes of the pickle."""

    size: int
    encoded: int = 0
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, content: bytes) -> Any:
        """Read the pickle and return its value."""
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count > _MAX_OPCODES:
                raise DataError(f"more than {_MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return _finished(self.stack.pop())
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _MEMO_PUTS:
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in _MEMO_GETS:
            self.stack.append(self.memo[argument])
        elif name in _ACTIONS:
            _ACTIONS[name](self)
        elif name == "GLOBAL":
            self.stack.append(_lookup(argument))
        else:
            raise DataError(f"the pickle uses {name}, which is refused")

    def pop(self, count: int) -> list[Any]:
        """Remove and return the top values of the stack."""
        if len(self.stack) < count:
            raise ValueError("the stack is empty")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def pop_mark(self) -> list[Any]:
        """Remove the newest mark and the values above it, and return the values."""
        place = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK)
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken

    def stack_global(self) -> None:
        """Replace the module and name on top of the stack by what they stand for."""
        module, name = self.pop(2)
        self.stack.append(_lookup(f"{module} {name}"))

    def append(self, values: list[Any]) -> None:
        """Add values to the list on top of the stack."""
        if not isinstance(self.stack[-1], list):
            raise ValueError("only a list is appended to")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Put keys and values into the dictionary on top of the stack."""
        if not isinstance(self.stack[-1], dict):
            raise ValueError("items are set in a dictionary only")
        self.stack[-1].update(_pairs(values))

    def reduce(self) -> None:
        """Create a part of an array from the name and arguments on top of the stack."""
        named, arguments = self.pop(2)
        if not isinstance(named, _Named) or not isinstance(arguments, tuple):
            raise ValueError("only the parts of an array can be created")
        self.stack.append(self.make(named.part, arguments))

    def build(self) -> None:
        """Set the state of the array or dtype on top of the stack."""
        state = self.pop(1)[0]
        made = self.stack[-1]
        if isinstance(made, _Dtype) and isinstance(state, tuple) and len(state) > 1:
            made.order = state[1]
        elif isinstance(made, _Array) and isinstance(state, tuple) and len(state) == 5:
            shape, dtype, is_fortran, values = state[1:]
            content = self.encode(values) if isinstance(values, str) else values
            made.value = _array(shape, dtype, content, is_fortran=bool(is_fortran))
        else:
            raise ValueError("only an array or a dtype has a state")

    def make(self, part: str, arguments: tuple[Any, ...]) -> Any:
        """Return the result of a pickled call that creates a part of an array."""
        if part == "dtype" and arguments and isinstance(arguments[0], str):
            if arguments[0] not in _DTYPES:
                raise DataError(f"the pickle has an array of dtype {arguments[0][:20]!r}: refused")
            return _Dtype(arguments[0])
        if part == "encode" and all(isinstance(a, str) for a in arguments) and arguments:
            # Python 3 writes the bytes of an old-protocol pickle as a call of `codecs.encode`.
            if arguments[1:] not in {(), ("latin1",), ("latin-1",)}:
                raise DataError(f"the pickle asks for the encoding {str(arguments[1:])[:50]}")
            return self.encode(arguments[0])
        if part == "reconstruct" and arguments[:1] == (_Named("ndarray"),):
            return _Array()
        raise ValueError(f"a call of {part} with unexpected arguments")

    def encode(self, text: str) -> bytes:
        """Encode a string as latin1; all encoded strings together may not exceed the pickle."""
        self.encoded += len(text)
        if self.encoded > self.size:
            raise DataError("the pickle encodes the same string many times, which is refused")
        return text.encode("latin1")


def _lookup(name: str) -> _Named:
    if name not in _ARRAY_PARTS:
        dotted = name.replace(" ", ".")[:100]
        raise DataError(f"the pickle asks for {dotted}, which is refused")
    return _Named(_ARRAY_PARTS[name])


def _array(shape: Any, dtype: Any, content: Any, *, is_fortran: bool) -> np.ndarray:
    """Create an array from its pickled state; its bytes must match its shape and dtype."""
    if not isinstance(dtype, _Dtype) or dtype.order not in ("<", ">", "=", "|"):
        raise ValueError("an array without a dtype")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an array without a valid shape")
    kind = np.dtype(dtype.order + dtype.letters)
    if not isinstance(content, bytes) or len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError("an array whose bytes do not match its shape")
    return np.frombuffer(content, kind).reshape(shape, order="F" if is_fortran else "C")


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    if not all(isinstance(key, str | bytes | int) for key in values[::2]):
        raise ValueError("a key that is no string or number")  # hashing a tuple may take forever
    return zip(values[::2], values[1::2], strict=True)


def _finished(value: Any) -> Any:
    """Replace an `_Array`, or the `_Array` values of a dictionary, by NumPy arrays."""
    if isinstance(value, dict):
        return {key: _finished_array(inner) for key, inner in value.items()}
    return _finished_array(value)


def _finished_array(value: Any) -> Any:
    if not isinstance(value, _Array):
        return value
    if value.value is None:
        raise ValueError("an array without values")
    return value.value


_IGNORED = {"PROTO", "FRAME"}
_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_MEMO_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_MEMO_GETS = {"GET", "BINGET", "LONG_BINGET"}
_ACTIONS: dict[str, Callable[[_Machine], None]] = {
    "LIST": lambda m: m.stack.append(m.pop_mark()),
    "DICT": lambda m: m.stack.append(dict(_pairs(m.pop_mark()))),
    "TUPLE": lambda m: m.stack.append(tuple(m.pop_mark())),
    "TUPLE1": lambda m: m.stack.append(tuple(m.pop(1))),
    "TUPLE2": lambda m: m.stack.append(tuple(m.pop(2))),
    "TUPLE3": lambda m: m.stack.append(tuple(m.pop(3))),
    "APPEND": lambda m: m.append(m.pop(1)),
    "APPENDS": lambda m: m.append(m.pop_mark()),
    "SETITEM": lambda m: m.set_items(m.pop(2)),
    "SETITEMS": lambda m: m.set_items(m.pop_mark()),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "STACK_GLOBAL": _Machine.stack_global,
}
