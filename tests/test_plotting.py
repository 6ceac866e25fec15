"""Letters that the base font lacks: another font's, or a word about them."""

import logging
import shutil
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from saccade import plotting
from saccade.plotting import BASE_FONT, draw_with_fonts

KNOWN, UNKNOWN = "Ω café пять", "\U00013080"  # an Egyptian hieroglyph


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is the first to meet its letters."""
    monkeypatch.setattr(plotting, "_warned", set())
    plotting._installed.cache_clear()


def drawn_with(text: str, tmp_path: Path) -> list[list[str]]:
    """The families with which a text was drawn, once or more."""
    tried: list[list[str]] = []

    def draw(families: list[str]) -> None:
        tried.append(families)
        with matplotlib.rc_context({"font.family": families}):
            figure = Figure()
            FigureCanvasAgg(figure)
            figure.text(0.5, 0.5, text)
            figure.savefig(tmp_path / "figure.png")

    draw_with_fonts(draw)
    return tried


def test_letters_of_the_base_font_are_drawn_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert drawn_with(KNOWN, tmp_path) == [[BASE_FONT]]
    assert caplog.records == []


def test_letters_that_no_font_has_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn_with(UNKNOWN * 3, tmp_path)
        drawn_with(UNKNOWN, tmp_path)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no installed font has U+13080 EGYPTIAN HIEROGLYPH" in record.getMessage()


def test_letters_are_taken_from_an_installed_font(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """DejaVu Serif stands in for a font of another script: for the test, the letter is its own."""
    serif = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSerif.ttf"
    copy = Path(shutil.copy(serif, tmp_path / "Other.ttf"))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda *_: [str(copy)])
    letters = {str(copy): frozenset({ord(UNKNOWN)})}
    monkeypatch.setattr(plotting, "_letters_of", lambda path: letters.get(path, frozenset()))
    entries = font_manager.fontManager.ttflist
    monkeypatch.setattr(
        font_manager.fontManager, "ttflist", [e for e in entries if e.name != "DejaVu Serif"]
    )
    assert drawn_with(UNKNOWN, tmp_path) == [[BASE_FONT], [BASE_FONT, "DejaVu Serif"]]


def test_other_warnings_are_passed_on(tmp_path: Path) -> None:
    def draw(families: list[str]) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        draw_with_fonts(draw)


def test_bitmaps_and_damaged_fonts_have_no_letters(tmp_path: Path) -> None:
    (tmp_path / "bad.ttf").write_bytes(b"no font")
    assert plotting._letters_of(str(tmp_path / "bad.ttf")) == frozenset()
    base = font_manager.findfont(BASE_FONT)
    assert ord("A") in plotting._letters_of(base)
    assert not any(family.startswith("Last Resort") for family, _ in plotting._installed())
