"""Palette and fonts of figures, with fallback fonts for names in any script.

matplotlib draws with its own DejaVu Sans. Letters that DejaVu Sans lacks are drawn with installed
fonts that have them. If no font has a letter, the figure shows a box and a warning is logged once.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BAD",
    "BASE_FONT",
    "GOOD",
    "GRID",
    "INK",
    "MUTED",
    "PIXELS_PER_INCH",
    "draw_in_style",
    "draw_with_fonts",
    "new_figure",
]

T = TypeVar("T")

INK, MUTED, GRID = "#1b1f24", "#57606a", "#e1e5ea"
GOOD, BAD = "#1852b5", "#c83e0e"
PIXELS_PER_INCH = 160

BASE_FONT = "DejaVu Sans"
PREFERRED = ("noto sans", "source han sans", "wenquanyi", "arial unicode", "unifont", "symbola")
"""Prefixes of the names of font families with many scripts; these are tried first."""
MAX_FONTS = 400
"""Maximum number of installed fonts that are searched."""

_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """A figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def draw_in_style(draw: Callable[[], T], style: Mapping[Any, Any]) -> T:
    """Draw and save a figure with these settings of matplotlib, and fonts for all its letters."""
    import matplotlib

    def in_fonts(families: list[str]) -> T:
        with matplotlib.rc_context({**style, "font.family": families}):
            return draw()

    return draw_with_fonts(in_fonts)


def draw_with_fonts(draw: Callable[[list[str]], T]) -> T:
    """Draw a figure, and draw it again with fallback fonts if letters are missing.

    Args:
        draw: Function that draws and saves the figure with the given font families.
    """
    drawn, missing = _drawn(draw, [BASE_FONT])
    if missing and (more := list(_families_for(missing))):
        drawn, missing = _drawn(draw, [BASE_FONT, *more])
    if new := missing - _warned:
        _warned.update(new)
        _log.warning(
            "no installed font has %s: figures show boxes instead; install a font that has them, "
            "such as Noto Sans CJK",
            _named(sorted(new)),
        )
    return drawn


def _drawn(draw: Callable[[list[str]], T], families: list[str]) -> tuple[T, set[str]]:
    """The result of `draw`, and the letters that none of these families has."""
    with warnings.catch_warnings(record=True) as caught, _without_weights():
        warnings.filterwarnings("always", message="Glyph ")
        drawn = draw(families)
    missing = set[str]()
    for warning in caught:
        if found := _MISSING.match(str(warning.message)):
            missing.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return drawn, missing


@contextmanager
def _without_weights() -> Iterator[None]:
    """Silence matplotlib's message that a fallback font has no bold letters."""
    log = logging.getLogger("matplotlib.font_manager")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _named(letters: Sequence[str], most: int = 5) -> str:
    """The code points and Unicode names of the letters."""
    shown = [f"U+{ord(own):04X} {unicodedata.name(own, '')}".strip() for own in letters[:most]]
    more = len(letters) - most
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _families_for(letters: Iterable[str]) -> Iterator[str]:
    """Families of installed fonts that together have as many of the letters as possible."""
    wanted = {ord(letter) for letter in letters}
    for family, path in _installed():
        if not wanted:
            return
        if found := wanted & _letters_of(path):
            wanted -= found
            yield family


@cache
def _installed() -> list[tuple[str, str]]:
    """Family and file of upright fonts; fonts with many scripts come first."""
    from matplotlib import font_manager

    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():  # fonts that are newer than matplotlib's cache
        if path not in known:
            with suppress(Exception):  # skip fonts that cannot be read
                font_manager.fontManager.addfont(path)
    found: dict[str, str] = {}
    for font in font_manager.fontManager.ttflist:
        has_letters = not font.name.startswith("Last Resort")  # matplotlib's font of boxes
        if font.style == "normal" and has_letters and font.name != BASE_FONT:
            found.setdefault(font.name, font.fname)
    return sorted(found.items(), key=lambda font: (_rank(font[0]), font[0]))[:MAX_FONTS]


def _rank(family: str) -> int:
    name = family.lower()
    places = (place for place, start in enumerate(PREFERRED) if name.startswith(start))
    return next(places, len(PREFERRED))


@cache
def _letters_of(path: str) -> frozenset[int]:
    """The letters of a scalable font; empty for bitmap fonts and unreadable files."""
    from matplotlib.ft2font import FT2Font

    try:
        font: Any = FT2Font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (RuntimeError, OSError, ValueError):
        return frozenset()
