"""Error rate of `saccade compare` in simulated comparisons of equally accurate methods.

Each case has some methods, seeds and a scatter of seeds for each method. Comparisons are drawn from
it, and run through the functions that make the table and the page. Two things are counted:

- the family-wise error: the share of comparisons with one false claim or more, over all pairs;
- the coverage: the share of 95 % intervals that contain the true value, each by itself, of
accuracies and
  of differences (those to the first method, which is the one that scatters most).

An image is classified correctly if a margin is positive. Margins are normal: a part of the image
that all methods share, a part of the seed and a rest. The true accuracy of every method is 92 %.

A second table has the limit of many images, where seeds are the only source of chance: the hardest
case for the tests, and fast enough for many comparisons. The p values are Student's t there, as a
test of `saccade.stats` shows.

    python benchmarks/family_wise_error.py --out results/family_wise_error/family_wise_error_202611
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr

from saccade.results import Answers, compare
from saccade.stats import accuracy_interval, own_factor

__all__ = ["ACCURACY", "SCATTERS", "Case", "Outcome", "draw", "many_images", "simulate"]

ACCURACY = 0.92
IMAGE_SPREAD, REST_SPREAD = 1.5, 0.5
LITTLE, MUCH = 0.1, 0.3
"""Scatter of seeds, in the units of margins; the spread of images is 1.5."""

SCATTERS: dict[str, tuple[float, ...]] = {
    "equal": (1,),
    "baseline 2x": (2, 1),
    "baseline 5x": (5, 1),
    "baseline 20x": (20, 1),
    "baseline 1/5": (0.2, 1),
    "two 5x": (5, 5, 1),
    "three 3x": (3, 3, 3, 1),
    "1, 1/2, 1/3, ...": tuple(1 / place for place in range(1, 13)),
    "1, 2/3, 4/9, ...": tuple(1.5**-place for place in range(12)),
}
"""The scatter of the first methods; that of the others is the last."""


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        methods: How many there are, all equally accurate.
        seeds: Of each method.
        scatter: A name of `SCATTERS`.
        noise: Scatter of the seeds of methods with a factor of 1.
        shared: Scatter of seeds that is the same for all methods.
        images: Of the test set.
    """

    methods: int
    seeds: int
    scatter: str
    noise: float
    shared: float = 0.0
    images: int = 400

    @property
    def noises(self) -> list[float]:
        """The scatter of each method."""
        factors = SCATTERS[self.scatter]
        return [self.noise * factors[min(i, len(factors) - 1)] for i in range(self.methods)]


@dataclass(frozen=True)
class Outcome:
    """How often simulated comparisons erred.

    Attributes:
        family_wise_error: Share of comparisons with a false claim or more.
        differences_held: Share of intervals of differences to the first method that hold 0.
        accuracies_held: Share of intervals of the first method's accuracy that hold it.
        comparisons: How many were drawn.
    """

    family_wise_error: float
    differences_held: float
    accuracies_held: float
    comparisons: int

    @property
    def error_margin(self) -> float:
        """Two standard errors of the family-wise error, at 5 %."""
        return 2 * math.sqrt(0.05 * 0.95 / self.comparisons)


def cases() -> Iterator[Case]:
    """What is drawn image by image."""
    for methods in (2, 3, 9):
        for seeds in (2, 3, 5):
            for noise in (0.0, LITTLE, MUCH):
                yield Case(methods, seeds, "equal", noise)
            yield Case(methods, seeds, "equal", LITTLE, shared=MUCH)
            yield Case(methods, seeds, "baseline 2x", LITTLE)
            yield Case(methods, seeds, "baseline 5x", LITTLE)
            yield Case(methods, seeds, "baseline 20x", 0.02)
            if methods == 9:
                yield Case(methods, seeds, "two 5x", LITTLE)
                yield Case(methods, seeds, "1, 1/2, 1/3, ...", MUCH)
    yield Case(3, 10, "baseline 5x", LITTLE)
    yield Case(9, 10, "equal", LITTLE)
    yield Case(9, 10, "three 3x", LITTLE)


CASES = tuple(cases())
LIMIT_METHODS, LIMIT_SEEDS = (2, 3, 5, 9, 12), (2, 3, 4, 5, 7, 10, 20)
LIMIT_CASES = tuple(
    Case(methods, seeds, scatter, 1.0)
    for methods in LIMIT_METHODS
    for seeds in LIMIT_SEEDS
    for scatter, factors in SCATTERS.items()
    if methods > 2 or len(factors) <= 2
)


def draw(
    rng: np.random.Generator,
    noises: Sequence[float],
    *,
    seeds: int,
    images: int,
    shared: float = 0.0,
    gains: Sequence[float] | None = None,
) -> list[NDArray[np.bool_]]:
    """What each method gets right: one (seeds, images) table for each.

    Args:
        rng: Source of chance.
        noises: Scatter of seeds of each method.
        seeds: Of each method.
        images: Of the test set.
        shared: Scatter of seeds that is the same for all methods.
        gains: What each method's margin has on top; without it all are equally accurate.
    """
    by_image = rng.normal(0, IMAGE_SPREAD, images)
    by_seed = rng.normal(0, shared, (seeds, 1))
    tables = []
    for noise, gain in zip(noises, gains or [0.0] * len(noises), strict=True):
        total = math.hypot(IMAGE_SPREAD, noise, shared, REST_SPREAD)
        own = rng.normal(0, noise, (seeds, 1)) + rng.normal(0, REST_SPREAD, (seeds, images))
        tables.append(ndtri(ACCURACY) * total + gain + by_image + by_seed + own > 0)
    return tables


def simulate(case: Case, comparisons: int) -> Outcome:
    """Draw comparisons and count their errors."""
    rng = np.random.default_rng([20261, case.methods, case.seeds, round(100 * case.noise)])
    names = [f"method {i}" for i in range(case.methods)]
    target = np.zeros(case.images, dtype=np.int64)
    judged = np.ones(case.images, dtype=bool)
    wrong, differences, accuracies = [], [], []
    for _ in range(comparisons):
        tables = draw(*(rng, case.noises), seeds=case.seeds, images=case.images, shared=case.shared)
        answers = {
            name: {seed: Answers(target, judged, right) for seed, right in enumerate(table)}
            for name, table in zip(names, tables, strict=True)
        }
        claims = compare(list(combinations(names, 2)), answers)
        wrong.append(any(claim.holds for claim in claims))
        differences += [claim.low <= 0 <= claim.high for claim in claims[: case.methods - 1]]
        interval = accuracy_interval(tables[0])
        accuracies.append(interval.low <= ACCURACY <= interval.high)
    return Outcome(*(float(np.mean(x)) for x in (wrong, differences, accuracies)), comparisons)


def many_images(case: Case, comparisons: int, *, guard: bool = True) -> float:
    """The family-wise error where seeds are the only source of chance; `noise` has no effect.

    Args:
        case: What is simulated.
        comparisons: How many are drawn.
        guard: Whether a difference is also tested by the scatter of its own two methods.
    """
    rng = np.random.default_rng([20262, case.methods, case.seeds])
    factors = np.array(replace(case, noise=1.0).noises)[:, None]
    means = rng.normal(size=(comparisons, case.methods, case.seeds)) * factors
    rest = means - means.mean(axis=1, keepdims=True)
    squares = rest.var(axis=2, ddof=1) * case.methods / (case.methods - 1)
    first, second = np.array(list(combinations(range(case.methods), 2))).T
    distance = np.abs((means[:, first] - means[:, second]).mean(axis=2)) * math.sqrt(case.seeds)
    freedom = case.seeds - 1
    shared = 2 * stdtr(
        (case.methods - 1) * freedom, -distance / np.sqrt(2 * squares.mean(axis=1, keepdims=True))
    )
    own = 2 * stdtr(freedom, -distance / np.sqrt(squares[:, first] + squares[:, second]))
    order = np.argsort(shared, axis=1)
    steps = np.take_along_axis(shared, order, axis=1) * np.arange(len(first), 0, -1)
    corrected = np.maximum.accumulate(steps, axis=1)
    if guard:
        by_own = own_factor(case.seeds, len(first)) * np.take_along_axis(own, order, axis=1)
        corrected = np.maximum(corrected, by_own)
    return float((corrected < 0.05).any(axis=1).mean())


def table(found: Sequence[tuple[Case, Outcome]]) -> str:
    """The cases that were drawn image by image, in Markdown."""
    lines = [
        "| methods | seeds | scatter of seeds | noise | shared | family-wise error "
        "| differences held | accuracies held |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, outcome in found:
        lines.append(
            f"| {case.methods} | {case.seeds} | {case.scatter} | {case.noise} | {case.shared} "
            f"| {outcome.family_wise_error:.1%} | {outcome.differences_held:.1%} "
            f"| {outcome.accuracies_held:.1%} |"
        )
    return "\n".join(lines)


def limit_table(found: Mapping[Case, float]) -> str:
    """The limit of many images in Markdown: the scatter across, methods and seeds down."""
    lines = [
        f"| methods | seeds | {' | '.join(SCATTERS)} |",
        f"|---|---|{'---|' * len(SCATTERS)}",
    ]
    for methods in LIMIT_METHODS:
        for seeds in LIMIT_SEEDS:
            own = [found.get(Case(methods, seeds, name, 1.0)) for name in SCATTERS]
            cells = " | ".join("" if error is None else f"{error:.1%}" for error in own)
            lines.append(f"| {methods} | {seeds} | {cells} |")
    return "\n".join(lines)


def summary(found: Sequence[tuple[Case, Outcome]], limit: Mapping[Case, float], count: int) -> str:
    """Both tables, with what a reader has to know of them."""
    comparisons, margin = found[0][1].comparisons, found[0][1].error_margin
    highest = max(outcome.family_wise_error for _, outcome in found)
    return (
        "# Errors of simulated comparisons\n\n"
        "Made by `benchmarks/family_wise_error.py`. All methods are equally accurate, and all "
        "pairs are tested as one family at 5 %.\n\n"
        f"## With {found[0][0].images} test images\n\n"
        f"{comparisons} comparisons a case. Highest family-wise error: {highest:.1%}; a true 5 % "
        f"would show as {0.05 - margin:.1%} to {0.05 + margin:.1%}. Noise and shared are standard "
        "deviations of a seed's part of the margin, of each method with a factor of 1 and of all "
        f"methods alike; that of the images' part is {IMAGE_SPREAD}. Intervals are 95 %, each by "
        "itself; differences are those to the first method, accuracies the first method's."
        f"\n\n{table(found)}\n\n"
        "## With so many images that seeds are the only source of chance\n\n"
        f"Family-wise error in {count:,} comparisons a case. Highest: {max(limit.values()):.1%}."
        f"\n\n{limit_table(limit)}\n"
    )


def _one(task: tuple[Case, int]) -> Outcome:
    return simulate(*task)


def main() -> None:
    """Simulate all cases, print the tables, write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=1000, help="of each case, with images")
    parser.add_argument("--limit", type=int, default=20_000, help="of each case of many images")
    parser.add_argument("--jobs", type=int, default=None, help="processes; default: all cores")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    arguments = parser.parse_args()
    with multiprocessing.Pool(arguments.jobs) as pool:
        tasks = [(case, arguments.comparisons) for case in CASES]
        outcomes = pool.map(_one, tasks, chunksize=1)
    found = list(zip(CASES, outcomes, strict=True))
    limit = {case: many_images(case, arguments.limit) for case in LIMIT_CASES}
    text = summary(found, limit, arguments.limit)
    print(text)
    if arguments.out:
        write(arguments.out, found, limit, text)


def write(
    out: Path, found: Sequence[tuple[Case, Outcome]], limit: Mapping[Case, float], text: str
) -> None:
    """OUT.json and OUT.md."""
    result = {
        "cases": [{**asdict(case), **asdict(outcome)} for case, outcome in found],
        "many_images": [
            {**asdict(case), "family_wise_error": error} for case, error in limit.items()
        ],
    }
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
