"""Triton's interpreter without the work that it repeats at every call: the same numbers, sooner."""

import operator
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np

__all__ = ["REPLACED", "speed_up"]

REPLACED: list[tuple[Any, str, Any]] = []
"""Triton's own functions: where they were, their names, and what they were."""

OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


class OncePerLaunch:
    """Replaces the functions of `triton.language` once for a kernel and all that it calls.

    Triton looks through the whole of `triton.language` whenever a kernel calls another function
    with `triton.jit`, such as `tl.sum`, to replace what the launch has replaced already.
    """

    def __init__(self, patch_lang: Any, languages: tuple[Any, ...]) -> None:
        self._patch_lang = patch_lang
        self._languages = languages
        self._seen_by = cache(self._languages_of)
        self._replaced: set[str] = set()
        self._scopes: list[Any] = []

    def _languages_of(self, function: FunctionType) -> frozenset[str]:
        known = {id(value) for value in function.__globals__.values()}
        return frozenset(x.__name__ for x in self._languages if id(x) in known)

    def patch(self, function: FunctionType) -> "OncePerLaunch":
        """Replace what this function sees and its launch has not replaced yet."""
        seen = self._seen_by(function)
        if not seen or not seen <= self._replaced:
            self._scopes.append(self._patch_lang(function))
            self._replaced |= seen
        return self

    def restore(self) -> None:
        """Triton calls this at the end of a launch."""
        while self._scopes:
            self._scopes.pop().restore()
        self._replaced.clear()


def check_overflow(left: Any, right: Any, operation: Any) -> None:
    """Refuse a sum, difference or product of integers that does not fit, as Triton does."""
    kind = left.type.scalar
    if kind.int_bitwidth >= 64:
        return
    assert kind == right.type.scalar
    wide = (x.handle.data.astype(np.int64) for x in (left, right))
    result = OPERATIONS[operation.__name__](*wide)
    fits = (result >= kind.get_int_min_value()) & (result <= kind.get_int_max_value())
    assert fits.all(), f"int{kind.int_bitwidth} overflow detected for {operation.__name__}"


def speed_up() -> None:
    """Speed up the interpreter of this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    numpy_type = interpreter._get_np_dtype  # builds a table whenever it is asked
    numpy_type_of = cache(numpy_type)

    def look_up(kind: Any) -> Any:
        scalar = kind.scalar
        return numpy_type(scalar) if isinstance(scalar, tl.pointer_type) else numpy_type_of(scalar)

    once = OncePerLaunch(interpreter._patch_lang, (tl, tl.core))
    for place, name, faster in (
        (interpreter, "_get_np_dtype", look_up),
        (interpreter, "_patch_lang", once.patch),
        (interpreter.interpreter_semantic, "binary_op_sanitize_overflow_impl", check_overflow),
    ):
        REPLACED.append((place, name, getattr(place, name)))
        setattr(place, name, faster)
