"""What an export found: where the file is, how it computes, and how far it is from torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ExportReport"]


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
