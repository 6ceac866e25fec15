"""Which differences in accuracy the evidence carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.report.collect import Run
from saccade.report.groups import Group
from saccade.statistics import holm, paired_difference, seed_noise

__all__ = ["Answers", "Claim", "answers_of", "compare", "tables_of"]

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Claim:
    """A difference in accuracy between two groups.

    Attributes:
        p_corrected: Holm's.
        seeds: Those that both were trained with, and that it was taken over.
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
        """Whether the evidence carries it."""
        return self.p_corrected < SIGNIFICANT

    @property
    def has_one_seed(self) -> bool:
        """Whether it cannot tell of other seeds."""
        return len(self.seeds) == 1


@dataclass(frozen=True)
class Answers:
    """The true class of every image and whether it was recognised, for one seed."""

    target: NDArray[Any]
    right: NDArray[Any]


def answers_of(group: Group) -> dict[int, Answers]:
    """The answers by seed, its folds one after another; seeds without predictions are not in.

    Of several runs with one seed and fold the first counts: the others are no new evidence.
    """
    first: dict[tuple[int, int], Run] = {}
    for run in sorted(group.runs, key=lambda run: run.replicate):
        first.setdefault(run.replicate, run)
    by_seed: dict[int, list[Run]] = defaultdict(list)
    for (seed, _), run in first.items():
        by_seed[seed].append(run)
    found = {}
    for seed, runs in by_seed.items():
        kept = [run.predictions for run in runs if run.predictions is not None]
        if len(kept) == len(runs):
            target = np.concatenate([own.target for own in kept])
            predicted = np.concatenate([own.predicted for own in kept])
            known = target >= 0
            found[seed] = Answers(target[known], (target == predicted)[known])
    return found


def tables_of(*answers: Mapping[int, Answers]) -> list[NDArray[Any]] | None:
    """(seeds, images) tables of what was right, for the seeds that all have; None without pairs."""
    seeds = _shared_seeds(*answers)
    targets = [own[seed].target for own in answers for seed in seeds]
    if not targets or len(targets[0]) < 2:
        return None
    if not all(np.array_equal(target, targets[0]) for target in targets):
        return None
    return [np.stack([own[seed].right for seed in seeds]) for own in answers]


def _shared_seeds(*answers: Mapping[int, Answers]) -> tuple[int, ...]:
    return tuple(sorted(set.intersection(*(set(own) for own in answers))))


def compare(
    pairs: Sequence[tuple[str, str]], answers: Mapping[str, Mapping[int, Answers]]
) -> list[Claim]:
    """The differences of all pairs that saw the same images, corrected together."""
    found = []
    most = max(map(len, answers.values()), default=0)
    known = [own for own in answers.values() if len(own) == most]
    everything = tables_of(*known) if len(known) > 1 else None
    noise = seed_noise(everything) if everything else None
    for first, second in pairs:
        both = answers[first], answers[second]
        tables = tables_of(*both)
        if tables is not None:
            own = paired_difference(*tables, noise=noise)
            found.append((first, second, own, _shared_seeds(*both)))
    corrected = holm([difference.p_value for _, _, difference, _ in found])
    return [
        Claim(first, second, own.mean, own.low, own.high, own.p_value, p, seeds)
        for (first, second, own, seeds), p in zip(found, corrected, strict=True)
    ]
