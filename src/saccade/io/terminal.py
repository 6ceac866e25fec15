"""Escape untrusted names for printing in a terminal."""

from __future__ import annotations

import unicodedata

__all__ = ["escape_for_terminal"]

JOINERS = "\u200c\u200d"  # join Persian and Indic letters and emoji; they do not reorder text
UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories of control characters and of invisible or unassigned characters."""


def escape_for_terminal(text: str) -> str:
    """Escape control, bidirectional and other invisible characters in a text.

    Without this, the name of a class or file could change terminal colors, set the window title,
    write to the clipboard (OSC sequences) or reorder the displayed text.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character in JOINERS or unicodedata.category(character) not in UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
