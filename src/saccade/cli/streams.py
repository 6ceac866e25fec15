"""Standard streams: closed streams, limited encodings, and control characters in names."""

from __future__ import annotations

import io
import os
import sys

import typer

__all__ = ["escape", "open_closed_streams", "say", "write_any_name"]

STREAMS = ("stdin", "stdout", "stderr")


def open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, for this process and its children.

    Python sets a closed stream to None. The next file that is opened gets its descriptor, so a
    library that prints would write into that file, perhaps a checkpoint.
    """
    for number, name in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def say(text: str, *, err: bool = False) -> None:
    """Print one or more lines with terminal control characters escaped.

    Line breaks are kept; pass names that may contain them through `escape` first.
    """
    typer.echo("\n".join(map(escape, text.split("\n"))), err=err)


def escape(name: str) -> str:
    """Escape line breaks and terminal control characters in a name."""
    from saccade.io import escape_for_terminal  # not needed for `--help`

    return escape_for_terminal(name)


def write_any_name() -> None:
    """Print characters that the terminal's encoding lacks as escapes, without an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
