"""What can be chosen about an exported file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from saccade.errors import ConfigError, ExportError, UnknownNameError, writing_error
from saccade.io import make_folder, remove_leftovers, write_file

__all__ = [
    "MAX_ERROR",
    "OPSETS",
    "Algorithm",
    "ExportOptions",
    "ExportReport",
    "Format",
    "Precision",
    "check_target",
    "chosen_layers",
    "require_packages",
    "write_output",
]

Format = Literal["onnx", "pt2", "hub"]
Precision = Literal["fp32", "fp16"]
Algorithm = Literal["auto", "direct", "efficient"]

OPSETS = range(18, 24)
"""Opsets that torch's exporter writes. WebGPU has all operators of 20; 23 adds `Attention`."""

MAX_ERROR: dict[str, float] = {"fp32": 1e-4, "fp16": 5e-3}
"""Largest accepted difference of a logit from torch; of fp16, over the largest logit if above 1."""


@dataclass(frozen=True)
class ExportOptions:
    """Options of an exported graph.

    Args:
        opset: Version of ONNX's operators, one of `OPSETS`.
        precision: `fp16` stores parameters and activations in float16; sums stay in float32, and so
            do inputs and outputs.
        algorithm: How Taylor attention is computed: `direct` (quadratic), `efficient` (linear), or
            the faster one in ONNX Runtime at the model's number of tokens.
        dynamic_size: Accept images of any multiple of the patch size, or sequences up to the
            maximum length, where the model's positions allow it.
        maps: Blocks whose attention maps are outputs too.
    """

    opset: int = 20
    precision: Precision = "fp32"
    algorithm: Algorithm = "auto"
    dynamic_size: bool = False
    maps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.opset not in OPSETS:
            raise ConfigError(
                f"opset must be an integer from {OPSETS[0]} to {OPSETS[-1]}, got {self.opset!r}; "
                "20 runs everywhere, 23 suits servers"
            )
        for name, choices in (("precision", Precision), ("algorithm", Algorithm)):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise UnknownNameError(name, str(value), get_args(choices))


def chosen_layers(maps: Sequence[int], depth: int) -> tuple[int, ...]:
    """Block indices from 0, ascending; negative ones count from the end."""
    if not all(-depth <= index < depth for index in maps):
        raise ConfigError(
            f"maps must name blocks from 0 to {depth - 1} (negative ones count from the end), got "
            f"{', '.join(map(str, maps))}"
        )
    return tuple(sorted({index % depth for index in maps}))


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        path: The file or folder that was written.
        num_bytes: Its size.
        algorithm: The algorithm of its attention, and why; empty where there is no choice.
        max_error: Largest difference of a logit from torch in float64.
        notes: More lines for the user.
    """

    path: Path
    num_bytes: int
    algorithm: str
    max_error: float
    notes: tuple[str, ...] = field(default=())


def check_target(path: Path, *, suffix: str) -> None:
    """Check the place of an exported file before work begins.

    Raises:
        ConfigError: The name has another suffix, or exists.
    """
    if path.suffix != suffix:
        raise ConfigError(f"out must be a file named *{suffix}, got {str(path)!r}")
    if path.exists():
        raise ConfigError(f"out must be a new file, got {str(path)!r}, which exists")


def write_output(path: Path, content: bytes | Callable[[BinaryIO], object]) -> int:
    """Write a file atomically; return its size."""
    try:
        make_folder(path.parent)
        remove_leftovers(path.parent, path.name)
        write_file(path, content)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ExportError) from None
    return path.stat().st_size


def require_packages(*names: str) -> None:
    """Raise an error that says how to install the first package that is missing."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"ONNX files need the package {name!r}: pip install 'saccade[export]'"
            )
