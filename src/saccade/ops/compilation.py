"""Functions that `torch.compile` calls once, while it traces, and whose result it keeps."""

from collections.abc import Callable
from typing import TypeVar

__all__ = ["constant_when_compiled"]

F = TypeVar("F", bound=Callable[..., object])


def constant_when_compiled(function: F) -> F:
    """Mark a function as `torch.compiler.assume_constant_result` does.

    That decorator imports the compiler, which takes longer than importing torch. Most processes
    compile nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
