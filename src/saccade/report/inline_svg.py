"""Prepare an SVG figure for a page: CSS variables as colors, unique ids, no global styles."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from saccade.report.style import PAGE_COLORS, SERIES_COLORS

__all__ = ["inline_svg"]

SVG = "http://www.w3.org/2000/svg"
XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
FONT = re.compile(r"font: (?:\w+ )*([\d.]+)px [^;]*")
REFERENCE = re.compile(r"#([^)]+)")
VARIABLES = {tone.light: f"var(--{tone.name})" for tone in (*PAGE_COLORS.values(), *SERIES_COLORS)}


def inline_svg(text: str, *, name: str, label: str) -> str:
    """Convert an SVG file to an element of the page.

    Colors of the palette become CSS variables, so that they follow the light or dark theme. Ids
    that are referenced get the figure's name as a prefix. Other ids are removed.

    Args:
        text: An SVG file as matplotlib writes it.
        name: A name that is unique on the page.
        label: Text for screen readers.
    """
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)
    for unwanted in ("metadata", "defs"):
        found = root.find(f"{{{SVG}}}{unwanted}")
        if found is not None:
            root.remove(found)
    used = {
        reference
        for element in root.iter()
        for value in (element.get(XLINK_HREF, ""), element.get("clip-path", ""))
        for reference in REFERENCE.findall(value)
        if not value.startswith("data:")
    }
    for element in root.iter():
        _rewrite(element, name, used)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode").replace("\n", "")


def _rewrite(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Rename or remove the id, update references and colors, and remove indentation."""
    if not (element.text or "").strip():
        element.text = None
    if not (element.tail or "").strip():
        element.tail = None
    old = element.attrib.pop("id", None)
    if old in used:
        element.set("id", f"{name}-{old}")
    if link := element.attrib.pop(XLINK_HREF, None):
        element.set("href", link if link.startswith("data:") else f"#{name}-{link[1:]}")
    if clip := element.get("clip-path"):
        element.set("clip-path", clip.replace("#", f"#{name}-"))
    if style := element.get("style"):
        style = COLOR.sub(lambda found: VARIABLES.get(found[0].lower(), found[0]), style)
        element.set("style", FONT.sub(r"font-size: \1px", style))
