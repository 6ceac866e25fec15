"""Group the runs that differ only in seed and fold; each group is one row of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.layers.attentions import ATTENTIONS
from saccade.report.collect import Run, plain
from saccade.results import TestedRun

__all__ = [
    "Group",
    "Label",
    "group_runs",
    "in_order",
    "label_groups",
    "settings_of",
    "shown",
    "varying",
]

ATTENTION = "model.attention"
NOT_COMPARED = (
    "run.",
    "search.",
    "tune.",
    "data.fold",
    "data.root",
    "data.workers",
    "train.device",
)
"""Keys that are ignored when runs are grouped: seeds, folds, paths and technical settings."""


@dataclass(frozen=True)
class Group:
    """The runs of one set-up.

    Attributes:
        named: The keys that appear in the label.
    """

    label: str
    attention: str
    runs: tuple[Run, ...]
    named: frozenset[str]

    @property
    def dataset(self) -> str:
        """The data set of the runs."""
        return self.runs[0].dataset

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds of the runs."""
        return frozenset(run.config.run.seed for run in self.runs)

    @property
    def has_local_conv(self) -> bool:
        """True if the models add a convolution of the values to their attention."""
        return bool(self.runs[0].config.model.overrides.get("local_conv"))

    @property
    def has_folds(self) -> bool:
        """True if the runs were tested on folds of the training images."""
        return any(run.config.data.fold is not None for run in self.runs)

    @property
    def tested(self) -> list[TestedRun]:
        """The runs with their test accuracy, or with validation accuracy if none was tested."""
        key = "test_accuracy" if self.measured("test_accuracy") else "val_accuracy_best"
        return [run.tested(key) for run in self.runs]

    def measured(self, key: str) -> list[float]:
        """This number of the summaries, omitting runs without it."""
        return [value for run in self.runs if (value := run.measured(key)) is not None]


def group_runs(
    runs: Sequence[Run], order: Sequence[str], searched: Sequence[str] = ()
) -> tuple[list[Group], list[str]]:
    """Group runs; return the groups and the keys, besides the attention, in which they differ.

    Args:
        runs: All runs.
        order: Attentions in display order; others follow.
        searched: Keys that a search varied. Labels contain all of them that differ.
    """
    settings = {run.name: settings_of(run) for run in runs}
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.attention, repr(sorted(settings[run.name].items()))].append(run)
    firsts = [own[0] for own in found.values()]
    each = [settings[run.name] for run in firsts]
    labels = label_groups([run.attention for run in firsts], each, searched)
    groups = [
        Group(
            label.text, own[0].attention, tuple(sorted(own, key=lambda run: run.name)), label.keys
        )
        for label, own in zip(labels, found.values(), strict=True)
    ]
    ranks = {name: i for i, name in enumerate(dict.fromkeys([*order, *ATTENTIONS]))}
    groups.sort(key=lambda own: (own.dataset, ranks.get(own.attention, len(ranks)), own.label))
    return groups, in_order(varying(each))


def settings_of(run: Run) -> dict[str, Any]:
    """Every key that is set and that distinguishes the run's set-up from others."""
    values = dict(_flat(run.config.model_dump(mode="json")))
    values["data.name"] = run.dataset
    values["model.name"] = run.summary.get("model", values.get("model.name"))
    return {
        key: value
        for key, value in values.items()
        if value is not None and key != ATTENTION and not key.startswith(NOT_COMPARED)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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


def shown(value: object) -> str:
    """A short text for a value of a configuration."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else plain(value, 60)
