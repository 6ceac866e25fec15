"""Group the runs that differ only in seed and fold; each group is one row of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.layers.attentions import ATTENTIONS
from saccade.report.collect import Run
from saccade.report.labels import in_order, label_groups, varying
from saccade.results import TestedRun

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
