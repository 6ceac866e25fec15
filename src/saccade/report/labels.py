"""Short, unique names for groups of runs, made from the settings in which they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.report.collect import plain

__all__ = ["Label", "in_order", "label_groups", "shown", "varying"]

Settings = Mapping[str, Any]

DATA = "data.name"
IMPORTANT_PREFIXES = ("model.name", DATA, "model.", "optim.", "train.", "data.", "augment.")
"""Prefixes of the most important keys, in order."""


@dataclass(frozen=True)
class Label:
    """The name of a group and the keys that appear in it."""

    text: str
    keys: frozenset[str]


def label_groups(
    attentions: Sequence[str], settings: Sequence[Settings], searched: Sequence[str] = ()
) -> list[Label]:
    """Make one unique label for each group.

    A label has the attention, the data set if there are several, and the fewest keys that
    distinguish the group from groups with the same attention and data set. The attention is
    omitted if all groups have the same one and the rest of the label is not empty.

    Args:
        attentions: Attention of each group.
        settings: Settings of each group. No two groups share both attention and settings.
        searched: Keys that are included in every label if groups differ in them.
    """
    differing = varying(settings)
    named = [key for key in searched if key in differing]
    marks: list[dict[str, str]] = [
        {
            **({DATA: shown(own[DATA])} if DATA in differing else {}),
            **{key: f"{_short_key(key)}={_brief(own.get(key))}" for key in named},
        }
        for own in settings
    ]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for group, attention in enumerate(attentions):
        alike[(attention, *marks[group].values())].append(group)
    for members in alike.values():
        _distinguish(members, settings, marks)
    marks_suffice = len(set(attentions)) == 1 and all(marks)
    return [
        Label(_text("" if marks_suffice else name, own.values()), frozenset(own))
        for name, own in zip(attentions, marks, strict=True)
    ]


def _text(attention: str, marks: Iterable[str]) -> str:
    told = " ".join(marks)
    return f"{attention} ({told})" if attention and told else attention or told


def _distinguish(
    members: Sequence[int], settings: Sequence[Settings], marks: list[dict[str, str]]
) -> None:
    """Label groups by the key with the most distinct values; repeat for equal values."""
    if len(members) == 1:
        return
    keys = varying([{k: shown(v) for k, v in settings[group].items()} for group in members])
    if not keys:  # they differ only in text that `shown` cuts off
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
        _distinguish(part, settings, marks)


def _rank(key: str, values: Sequence[object]) -> tuple[int, bool, int, str]:
    """Sort keys by number of values, then whether all groups set them, then importance."""
    return -len(set(map(shown, values))), None in values, _place(key), key


def _place(key: str) -> int:
    return next(
        (i for i, start in enumerate(IMPORTANT_PREFIXES) if key.startswith(start)),
        len(IMPORTANT_PREFIXES),
    )


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys sorted by importance, then by name."""
    return sorted(keys, key=lambda key: (_place(key), key))


def varying(settings: Sequence[Settings]) -> set[str]:
    """The keys that have more than one value."""
    keys = {key for own in settings for key in own}
    return {key for key in keys if len({repr(own.get(key)) for own in settings}) > 1}


def _short_key(key: str) -> str:
    """The last part of a key: `lr` for `optim.lr`, `optim` for `optim.name`."""
    section, _, last = key.rpartition(".")
    return section.rpartition(".")[2] if last == "name" else last


def _brief(value: object) -> str:
    """A value in the format of `saccade tune`."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def shown(value: object, longest: int = 60) -> str:
    """A short text for a value of a configuration."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else plain(value, longest)
