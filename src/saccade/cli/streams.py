"""Standard streams: some are closed, as by `2>&-`, and some cannot write every name."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["open_closed_streams", "write_any_name"]

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


def write_any_name() -> None:
    """Have names of files that a terminal's encoding lacks written as escapes, not raised."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
