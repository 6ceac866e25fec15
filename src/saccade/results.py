"""Accuracies of tested runs, with intervals and tests of their differences.

`saccade compare` writes these numbers to `results.json` and prints them, and `saccade report`
renders them. Neither computes statistics itself. Only images that were read count
(`saccade.predictions`). Does not need torch.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.runs import Predictions
from saccade.stats import (
    Scatter,
    accuracy_interval,
    corrected_p_values,
    paired_difference,
    seed_scatter,
)

__all__ = [
    "MAX_PAIRED",
    "Accuracy",
    "Answers",
    "Claim",
    "Results",
    "TestedRun",
    "answers_of",
    "compare",
    "results_of",
    "same_images",
    "shared_rate_note",
    "skipped_note",
    "tables_of",
]

SIGNIFICANT = 0.05

MAX_PAIRED = 12
"""With more groups than this, only pairs with the baseline are compared."""


@dataclass(frozen=True)
class TestedRun:
    """The test results of a finished run.

    Attributes:
        seed: Seed of the run.
        fold: Cross-validation fold; 0 if the run was tested on the test set.
        folds: Number of folds; 1 if the run was tested on the test set.
        accuracy: Accuracy in the summary, used if there are no predictions.
        predictions: Predictions for the test images.
    """

    __test__ = False  # keeps pytest from collecting this class

    seed: int
    fold: int
    folds: int
    accuracy: float | None
    predictions: Predictions | None

    @property
    def judged_accuracy(self) -> float | None:
        """Accuracy from the predictions, or else from the summary."""
        known = self.predictions.accuracy if self.predictions is not None else None
        return self.accuracy if known is None else known


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a group of runs that differ only in seed and fold.

    Attributes:
        mean: Mean over the seeds and the images that were judged with every seed. Without an
            interval, mean over the runs; None if there are no runs.
        low: Lower end of the interval over new seeds and new images; None if it is unknown.
        high: Upper end of the interval.
        by_seed: Accuracy of each seed whose folds are complete.
        by_run: Accuracy of each seed and fold.
        num_images: Number of images that were judged with every seed.
        num_skipped: Number of images that could not be read with at least one seed.
    """

    mean: float | None
    low: float | None
    high: float | None
    by_seed: dict[int, float]
    by_run: dict[tuple[int, int], float]
    num_images: int
    num_skipped: int

    @property
    def spread(self) -> float | None:
        """Standard deviation over the runs; None for fewer than two runs."""
        values = list(self.by_run.values())
        return statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Claim:
    """A tested difference in accuracy between two groups.

    Attributes:
        first: Name of the first group.
        second: Name of the group that is subtracted.
        difference: Accuracy of the first group minus accuracy of the second.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p_value: P value of this difference by itself.
        p_corrected: P value corrected for all differences that are compared together.
        seeds: Seeds that both groups have, over which the difference was computed.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    p_corrected: float
    seeds: tuple[int, ...]

    @property
    def holds(self) -> bool:
        """True if the difference is significant after correction."""
        return self.p_corrected < SIGNIFICANT

    @property
    def has_one_seed(self) -> bool:
        """True if only one seed was used, so that the claim does not cover other seeds."""
        return len(self.seeds) == 1


@dataclass(frozen=True)
class Results:
    """Accuracies and tested differences of several groups of runs.

    Attributes:
        accuracies: Accuracy of each group.
        answers: Correctly classified images, by group and seed.
        against_baseline: Difference of each other group to the baseline, if it can be computed.
        others: Differences of all pairs without the baseline. Their p values are corrected together
            with those of `against_baseline`.
    """

    accuracies: dict[str, Accuracy]
    answers: dict[str, dict[int, Answers]] = field(repr=False)
    against_baseline: list[Claim]
    others: list[Claim]

    @property
    def num_images(self) -> int:
        """Number of judged images, maximum over the groups."""
        return max((own.num_images for own in self.accuracies.values()), default=0)

    @property
    def num_skipped(self) -> int:
        """Number of unreadable images, maximum over the groups."""
        return max((own.num_skipped for own in self.accuracies.values()), default=0)


@dataclass(frozen=True)
class Answers:
    """Test results of one seed for every image, with the folds concatenated.

    Attributes:
        target: (n,), the true classes; -1 if unknown.
        judged: (n,), True for images that were read.
        right: (n,), True for images that were classified correctly.
    """

    target: NDArray[Any]
    judged: NDArray[np.bool_]
    right: NDArray[np.bool_]


def results_of(
    groups: Mapping[str, Sequence[TestedRun]], baseline: str | None, *, is_compared: bool = True
) -> Results:
    """Compute accuracies, intervals and tests of groups of runs.

    Args:
        groups: Runs of each group, by name.
        baseline: Group that the others are compared with; None compares all pairs.
        is_compared: If False, no differences are tested, for example for runs on different data.
    """
    answers = {name: answers_of(runs) for name, runs in groups.items()}
    others = [name for name in groups if name != baseline] if is_compared else []
    pairs = combinations(others, 2) if len(groups) <= MAX_PAIRED else ()
    claims = compare([*((name, baseline) for name in others if baseline), *pairs], answers)
    return Results(
        accuracies={name: _accuracy(runs, answers[name]) for name, runs in groups.items()},
        answers=answers,
        against_baseline=[claim for claim in claims if claim.second == baseline],
        others=[claim for claim in claims if claim.second != baseline],
    )


def _accuracy(runs: Sequence[TestedRun], answers: Mapping[int, Answers]) -> Accuracy:
    by_run: dict[tuple[int, int], float] = {}
    for run in runs:
        if (own := run.judged_accuracy) is not None:
            by_run.setdefault((run.seed, run.fold), own)
    skipped = [run.predictions.num_skipped for run in runs if run.predictions is not None]
    if (tables := tables_of(answers)) is None:
        mean = statistics.fmean(by_run.values()) if by_run else None
        return Accuracy(mean, None, None, {}, by_run, 0, max(skipped, default=0))
    (table,) = tables
    interval = accuracy_interval(table)
    by_seed = dict(zip(sorted(answers), table.mean(axis=1).tolist(), strict=True))
    seen = len(next(iter(answers.values())).judged)
    return Accuracy(
        *(interval.mean, interval.low, interval.high),
        by_seed,
        by_run,
        num_images=table.shape[1],
        num_skipped=seen - table.shape[1],
    )


def answers_of(runs: Iterable[TestedRun]) -> dict[int, Answers]:
    """Test results by seed, with the folds concatenated.

    Seeds with a missing fold, or with a run without predictions, are left out. If several runs have
    the same seed and fold, only the first is used, because repetitions are no new evidence.
    """
    first: dict[tuple[int, int], TestedRun] = {}
    for run in runs:
        first.setdefault((run.seed, run.fold), run)
    by_seed: dict[int, list[TestedRun]] = defaultdict(list)
    for replicate in sorted(first):
        by_seed[replicate[0]].append(first[replicate])
    found = {}
    for seed, own in by_seed.items():
        kept = [run.predictions for run in own if run.predictions is not None]
        if len(kept) == len(own) == own[0].folds:
            found[seed] = Answers(
                *(np.concatenate([getattr(part, name) for part in kept]) for name in _ANSWERS)
            )
    return found


_ANSWERS = ("target", "judged", "right")


def tables_of(*answers: Mapping[int, Answers]) -> list[NDArray[Any]] | None:
    """One (seeds, images) table of correct classifications for each group.

    The tables cover the seeds that all groups have, and the images that were judged in all runs of
    these seeds. None if there are no such seeds or images, or if the runs saw different images.
    """
    seeds = _shared_seeds(*answers)
    found = [own[seed] for own in answers for seed in seeds]
    if not found or not all(same_images(found[0], own) for own in found):
        return None
    judged = np.logical_and.reduce([own.judged for own in found])
    if judged.sum() < 2:
        return None
    return [np.stack([own[seed].right[judged] for seed in seeds]) for own in answers]


def same_images(first: Answers, second: Answers) -> bool:
    """True if the true classes of two runs match, so that they saw the same images."""
    if len(first.target) != len(second.target):
        return False
    both = first.judged & second.judged
    return bool(np.array_equal(first.target[both], second.target[both]))


def _shared_seeds(*answers: Mapping[int, Answers]) -> tuple[int, ...]:
    return tuple(sorted(set.intersection(*(set(own) for own in answers))))


def compare(
    pairs: Sequence[tuple[str, str]], answers: Mapping[str, Mapping[int, Answers]]
) -> list[Claim]:
    """Test the differences of all pairs that were tested on the same images.

    The p values of all tested pairs are corrected together (`saccade.stats`).
    """
    scatters: dict[tuple[int, ...], tuple[Scatter, dict[str, int]] | None] = {}
    found, family = [], []
    for first, second in pairs:
        both = answers[first], answers[second]
        if (tables := tables_of(*both)) is None:
            continue
        seeds = _shared_seeds(*both)
        if seeds not in scatters:
            scatters[seeds] = _scatter(answers, seeds)
        shared = own = None
        if (known := scatters[seeds]) is not None:
            scatter, places = known
            shared, own = scatter.shared, scatter.of_pair(places[first], places[second])
        family.append(paired_difference(*tables, shared=shared, own=own))
        found.append((first, second, seeds))
    return [
        Claim(first, second, own.mean, own.low, own.high, own.p_value, p, seeds)
        for (first, second, seeds), own, p in zip(
            found, family, corrected_p_values(family), strict=True
        )
    ]


def _scatter(
    answers: Mapping[str, Mapping[int, Answers]], seeds: Sequence[int]
) -> tuple[Scatter, dict[str, int]] | None:
    """Scatter over these seeds of the groups that have them all, and the index of each group in it.

    A pair with few seeds is therefore tested with the scatter of its own groups too, not only with
    that of the groups with more seeds.
    """
    known = {
        name: {seed: own[seed] for seed in seeds}
        for name, own in answers.items()
        if set(seeds) <= set(own)
    }
    tables = tables_of(*known.values())
    scatter = seed_scatter(tables) if tables else None
    return (scatter, {name: i for i, name in enumerate(known)}) if scatter else None


def shared_rate_note(learning_rate: float, *, is_tuned: bool = False) -> str:
    """Note for attentions that were all trained with the same learning rate.

    Args:
        learning_rate: The shared learning rate.
        is_tuned: True if the attentions were tuned as well, in another table.
    """
    told = f"one learning rate ({learning_rate:g}) for all attentions, tuned for none of them"
    if is_tuned:
        return f"the table of shared settings: {told}"
    return f"{told}: the ranking may differ with another recipe"


def skipped_note(num_judged: int, num_skipped: int, noun: str = "image") -> str:
    """Note about test images that could not be read."""
    total = num_judged + num_skipped
    return f"{num_skipped:,} of {total:,} test {noun}s could not be read and are not counted"
