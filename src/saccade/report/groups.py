"""Runs that differ in their seed alone form a group; a group is a row of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.report.collect import Run, plain
from saccade.report.look import ATTENTION_COLOURS

__all__ = ["Group", "group_runs"]

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
"""Keys that do not make two runs different to a reader: repetition, place and plumbing."""


@dataclass(frozen=True)
class Group:
    """Repetitions of one set-up."""

    label: str
    attention: str
    runs: tuple[Run, ...]

    def measured(self, key: str) -> list[float]:
        """A number of every run's summary, those without it left out."""
        return [value for run in self.runs if (value := run.measured(key)) is not None]


def group_runs(runs: Sequence[Run], order: Sequence[str]) -> tuple[list[Group], list[str]]:
    """The groups, and the keys besides the attention in which the runs differ.

    A group is called by its attention, and by the keys that tell it from other groups of the same
    attention where there are such; by these alone where all runs have one attention.

    Args:
        runs: All runs.
        order: Attentions in the order to show them; others follow.
    """
    settings = {run.name: _settings(run) for run in runs}
    differing = _varying(list(settings.values()))
    telling = {
        key
        for attention in {run.attention for run in runs}
        for key in _varying([settings[run.name] for run in runs if run.attention == attention])
    }
    one_attention = len({run.attention for run in runs}) == 1
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        own = settings[run.name]
        marks = [f"{key.rpartition('.')[2]}={_short(own.get(key))}" for key in sorted(telling)]
        name = [] if one_attention and marks else [run.attention]
        found[", ".join([*name, *marks])].append(run)
    groups = [
        Group(label, own[0].attention, tuple(sorted(own, key=lambda run: run.name)))
        for label, own in found.items()
    ]
    ranks = {name: i for i, name in enumerate(dict.fromkeys([*order, *ATTENTION_COLOURS]))}
    groups.sort(key=lambda group: (ranks.get(group.attention, len(ranks)), group.label))
    return groups, sorted(differing)


def _settings(run: Run) -> dict[str, Any]:
    values = dict(_flat(run.config.model_dump(mode="json")))
    values["model.name"] = run.summary.get("model", values.get("model.name"))
    return {
        key: value
        for key, value in values.items()
        if key != ATTENTION and not key.startswith(NOT_COMPARED)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _varying(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    keys = {key for own in settings for key in own}
    return {key for key in keys if len({repr(own.get(key)) for own in settings}) > 1}


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else plain(value, 20)
