"""Standard streams that whoever started the command has closed, as by `2>&-`."""

from __future__ import annotations

import os
import sys

__all__ = ["open_closed_streams"]

STREAMS = ("stdin", "stdout", "stderr")


def open_closed_streams() -> None:
    """Open closed streams on nothing, for this process and those it starts.

    Python has None for them, and the next file to be opened gets the free number: what a library
    prints would go into it, were it a checkpoint.
    """
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
