"""Runs that differ in their seed alone form a group; a group is a row of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.report.collect import Run
from saccade.report.labels import in_order, label_groups, varying
from saccade.report.look import ATTENTION_COLOURS

__all__ = ["Group", "group_runs", "settings_of"]

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
    """Repetitions of one set-up.

    Attributes:
        named: The keys that its label names.
    """

    label: str
    attention: str
    runs: tuple[Run, ...]
    named: frozenset[str]

    @property
    def dataset(self) -> str:
        """The data set that its runs were made on."""
        return self.runs[0].dataset

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds of its runs."""
        return frozenset(run.config.run.seed for run in self.runs)

    @property
    def has_folds(self) -> bool:
        """Whether its runs were judged on folds of the training images."""
        return any(run.config.data.fold is not None for run in self.runs)

    @property
    def accuracies(self) -> dict[tuple[int, int], float]:
        """By seed and fold: on test images, or in validation where nothing was tested.

        Of several runs with one seed and fold the first counts.
        """
        key = "test_accuracy" if self.measured("test_accuracy") else "val_accuracy_best"
        found: dict[tuple[int, int], float] = {}
        for run in self.runs:
            if (value := run.measured(key)) is not None:
                found.setdefault(run.replicate, value)
        return found

    def measured(self, key: str) -> list[float]:
        """A number of every run's summary, those without it left out."""
        return [value for run in self.runs if (value := run.measured(key)) is not None]


def group_runs(runs: Sequence[Run], order: Sequence[str]) -> tuple[list[Group], list[str]]:
    """The groups, and the keys besides the attention in which the runs differ.

    Args:
        runs: All runs.
        order: Attentions in the order to show them; others follow.
    """
    settings = {run.name: settings_of(run) for run in runs}
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.attention, repr(sorted(settings[run.name].items()))].append(run)
    firsts = [own[0] for own in found.values()]
    each = [settings[run.name] for run in firsts]
    labels = label_groups([run.attention for run in firsts], each)
    groups = [
        Group(
            label.text, own[0].attention, tuple(sorted(own, key=lambda run: run.name)), label.keys
        )
        for label, own in zip(labels, found.values(), strict=True)
    ]
    ranks = {name: i for i, name in enumerate(dict.fromkeys([*order, *ATTENTION_COLOURS]))}
    groups.sort(key=lambda own: (own.dataset, ranks.get(own.attention, len(ranks)), own.label))
    return groups, in_order(varying(each))


def settings_of(run: Run) -> dict[str, Any]:
    """Every key that is set and makes a run another than its repetitions."""
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
