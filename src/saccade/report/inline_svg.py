"""A drawn SVG made fit to stand inside a page: themed, named, and without global ids or styles."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from saccade.report.look import ATTENTION_COLOURS, PAGE_COLOURS

__all__ = ["inline_svg"]

SVG = "http://www.w3.org/2000/svg"
XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
FONT = re.compile(r"font: (?:\w+ )*([\d.]+)px [^;]*")
REFERENCE = re.compile(r"#([^)]+)")
VARIABLES = {
    tone.light: f"var(--{tone.name})"
    for tone in (*PAGE_COLOURS.values(), *ATTENTION_COLOURS.values())
}


def inline_svg(text: str, *, name: str, label: str) -> str:
    """The figure as an element of a page.

    Colours of the palette become the page's variables, so that they follow light and dark; the ids
    that are referred to carry the figure's name, the others are dropped.

    Args:
        text: An SVG file as matplotlib writes it.
        name: Unique on the page.
        label: What a reader who does not see the figure is told.
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
    """Rename or drop the id, follow the references, theme the style, drop the indentation."""
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
        style = COLOUR.sub(lambda found: VARIABLES.get(found[0].lower(), found[0]), style)
        element.set("style", FONT.sub(r"font-size: \1px", style))
