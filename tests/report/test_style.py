"""The palette can be read: by color-blind readers, on light and on dark ground."""

from itertools import combinations

import numpy as np
import pytest

from saccade.layers import ATTENTIONS, Attention
from saccade.report.style import MARKERS, PAGE_COLORS, SERIES_COLORS, series_of

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
TELLABLE = 0.09
"""Distance in Oklab; 0.02 is the least that can be seen side by side."""


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def nearest(colors: list[str], sight: str) -> float:
    """The distance in Oklab of the two colors that look most alike."""
    seen = [np.clip(SIGHTS[sight] @ linear(color), 0, 1) for color in colors]
    places = [OKLAB @ np.cbrt(LMS @ own) for own in seen]
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(places, 2))


def contrast(first: str, second: str) -> float:
    """WCAG's ratio."""
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(float(linear(color) @ weights) for color in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_colors_are_told_apart(ground: str, sight: str) -> None:
    colors = [getattr(tone, ground) for tone in SERIES_COLORS]
    assert nearest(colors, sight) > TELLABLE


def test_red_beside_green_would_be_caught() -> None:
    pair = ["#c83e0d", "#7d7a00"]
    assert nearest(pair, "normal") > TELLABLE
    assert nearest(pair, "deuteranopia") < TELLABLE


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_contrast_with_the_page(ground: str) -> None:
    paper, ink, muted = (getattr(PAGE_COLORS[name], ground) for name in ("paper", "ink", "muted"))
    assert contrast(ink, paper) > 12
    assert contrast(muted, paper) > 4.5
    for tone in SERIES_COLORS:
        assert contrast(getattr(tone, ground), paper) > 3


def test_no_two_tones_share_a_value() -> None:
    """`inline_svg` tells the tones apart by it."""
    tones = [tone.light for tone in (*PAGE_COLORS.values(), *SERIES_COLORS)]
    assert len(set(tones)) == len(tones)


NINE = (
    *("softmax", "taylor", "taylorshift", "performer", "performer_relu", "performer_exp"),
    *("performer_gelu", "performer_elu", "performer_ftheta"),
)


def test_the_first_nine_attentions_have_the_nine_colors_in_order() -> None:
    assert tuple(ATTENTIONS)[:9] == NINE
    looks = series_of(NINE)
    assert [look.color for look in looks.values()] == [tone.light for tone in SERIES_COLORS]
    assert "".join(look.marker for look in looks.values()) == MARKERS


def test_more_attentions_have_looks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody adds a color for them, and those of the others stay."""
    before = series_of(NINE)
    for number in range(30):
        more = Attention("cores.SoftmaxCore", "another", linear=False)
        monkeypatch.setitem(ATTENTIONS._entries, f"more_{number}", more)
    looks = series_of(ATTENTIONS)
    assert len(looks) == len(ATTENTIONS) >= 39
    assert {name: looks[name] for name in NINE} == before
    assert len({(look.color, look.marker) for look in looks.values()}) == len(looks)
    assert series_of(["more_4"])["more_4"] == looks["more_4"]


def test_looks_do_not_depend_on_the_company() -> None:
    alone, among = series_of(["taylor"]), series_of(["mine", "softmax", "taylor", "yours"])
    assert alone["taylor"] == among["taylor"]
    assert len({look.color for look in among.values()}) == 4


def test_more_labels_than_colors_differ_in_dashes() -> None:
    looks = series_of([f"set-up {i}" for i in range(20)])
    assert len({(look.color, str(look.dash)) for look in looks.values()}) == 20
