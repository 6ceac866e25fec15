"""What the inputs of a run are, in words."""

from __future__ import annotations

__all__ = ["noun_of", "speed_unit"]

_NOUNS = {"images": "image", "bytes": "text"}


def noun_of(kind: object) -> str:
    """What an input is, in the singular, by the `kind` in `dataset.json`; older runs have none."""
    return "image" if kind is None else _NOUNS.get(str(kind), "sequence")


def speed_unit(noun: str) -> str:
    """The unit of throughput, such as `img/s`."""
    return "img/s" if noun == "image" else f"{noun}s/s"
