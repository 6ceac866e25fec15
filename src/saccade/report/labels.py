"""Short names for groups of runs: as much of each configuration as tells it from the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.report.collect import plain

__all__ = ["Label", "in_order", "label_groups", "shown", "varying"]

Settings = Mapping[str, Any]

DATA = "data.name"
TELLING = ("model.name", DATA, "model.", "optim.", "train.", "data.", "augment.")
"""Keys a reader looks for first, by how they begin."""


@dataclass(frozen=True)
class Label:
    """What a group is called, and the keys that this names."""

    text: str
    keys: frozenset[str]


def label_groups(attentions: Sequence[str], settings: Sequence[Settings]) -> list[Label]:
    """One label a group, no two the same.

    A group is called by its attention, its data set where there are several, and by the fewest keys
    that tell it from other groups so called; by these alone where all have one attention.

    Args:
        attentions: Of each group.
        settings: Of each group, by key; no two groups have the same of both.
    """
    several_data = DATA in varying(settings)
    marks: list[dict[str, str]] = [
        {DATA: shown(own[DATA])} if several_data else {} for own in settings
    ]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for group, attention in enumerate(attentions):
        alike[(attention, *marks[group].values())].append(group)
    for members in alike.values():
        _tell_apart(members, settings, marks)
    marks_suffice = len(set(attentions)) == 1 and all(marks)
    return [
        Label(_text("" if marks_suffice else name, own.values()), frozenset(own))
        for name, own in zip(attentions, marks, strict=True)
    ]


def _text(attention: str, marks: Iterable[str]) -> str:
    told = " ".join(marks)
    return f"{attention} ({told})" if attention and told else attention or told


def _tell_apart(
    members: Sequence[int], settings: Sequence[Settings], marks: list[dict[str, str]]
) -> None:
    """Mark groups by the key that splits them most finely, and what is still together again."""
    if len(members) == 1:
        return
    keys = varying([{k: shown(v) for k, v in settings[group].items()} for group in members])
    if not keys:  # they differ in what `shown` cuts off
        for number, group in enumerate(members, start=1):
            marks[group]["#"] = f"#{number}"
        return
    key = min(keys, key=lambda key: _rank(key, [settings[group].get(key) for group in members]))
    parts: dict[str, list[int]] = defaultdict(list)
    for group in members:
        parts[shown(settings[group].get(key))].append(group)
    for value, part in parts.items():
        for group in part:
            marks[group][key] = f"{_short_key(key)}={value}"
        _tell_apart(part, settings, marks)


def _rank(key: str, values: Sequence[object]) -> tuple[int, bool, int, str]:
    """Keys with more values first, then those that all groups set, then those looked for first."""
    return -len(set(map(shown, values))), None in values, _place(key), key


def _place(key: str) -> int:
    return next((i for i, start in enumerate(TELLING) if key.startswith(start)), len(TELLING))


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys in the order in which a reader looks for them."""
    return sorted(keys, key=lambda key: (_place(key), key))


def varying(settings: Sequence[Settings]) -> set[str]:
    """The keys that do not have one value everywhere."""
    keys = {key for own in settings for key in own}
    return {key for key in keys if len({repr(own.get(key)) for own in settings}) > 1}


def _short_key(key: str) -> str:
    """`optim.lr` as `lr`, `optim.name` as `optim`."""
    section, _, last = key.rpartition(".")
    return section.rpartition(".")[2] if last == "name" else last


def shown(value: object) -> str:
    """A value of a configuration, briefly."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else plain(value, 24)
