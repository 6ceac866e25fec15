"""From run folders to the table of a comparison, with intervals and tests."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saccade.errors import ConfigError
from saccade.overlap import TOGETHER
from saccade.runs import RunFolder
from saccade.statistics import (
    CONFIDENCE,
    SeedNoise,
    accuracy_interval,
    holm,
    paired_difference,
    seed_noise,
)
from saccade.study.comparison.fairness import UnfairError, check_run, check_together
from saccade.study.comparison.folder import VERSION, ComparisonFolder
from saccade.study.comparison.plan import Job

__all__ = ["collect"]

Correct = NDArray[np.bool_]

Speed = Literal["own", "alone", "shared"]
"""Whose speeds the table holds: of runs one after the other on one kind of device, measured after
training, or of runs that cannot be compared."""


@dataclass
class _Variant:
    """The finished runs of one attention.

    Attributes:
        summaries: One a run.
        correct: By seed, whether each image was classified rightly; folds one after the other.
    """

    summaries: dict[Job, dict[str, Any]]
    correct: dict[int, Correct]

    def table(self, seeds: Sequence[int] | None = None) -> Correct:
        """(S, n): a row a seed."""
        return np.stack([self.correct[seed] for seed in seeds or sorted(self.correct)])

    def median(self, key: str) -> float | None:
        """The median of a number over the runs."""
        values = [s[key] for s in self.summaries.values() if s.get(key) is not None]
        return statistics.median(values) if values else None

    def images_per_epoch(self) -> float | None:
        """Those of the run of middle speed; medians of its two factors may be of two runs."""
        runs = [s for s in self.summaries.values() if s.get("img_per_s") is not None]
        if not runs:
            return None
        run = sorted(runs, key=lambda s: float(s["img_per_s"]))[(len(runs) - 1) // 2]
        return float(run["seconds_per_epoch"] * run["img_per_s"])


def collect(folder: ComparisonFolder) -> dict[str, Any]:
    """The results so far, as in `results.json`.

    Raises:
        UnfairError: A run was not made as planned.
    """
    plan = folder.plan
    variants = {name: _Variant({}, {}) for name in plan.attentions}
    for job in folder.finished():
        check_run(folder.run(job), plan, job)
        variants[job.attention].summaries[job] = folder.run(job).summary()
    done = {job: s for variant in variants.values() for job, s in variant.summaries.items()}
    check_together(done)
    _check_start(folder, done)
    _fill_correct(folder, variants)
    measures, speed = folder.measures(), _whose_speed(folder, done)
    rows = [_row(name, variants[name], measures.get(name, {}), speed) for name in plan.attentions]
    _compare_with_baseline(rows, variants, plan.baseline)
    return {
        "version": VERSION,
        "complete": len(done) == len(plan.jobs()),
        "measure": "test_accuracy" if plan.folds is None else "fold_accuracy",
        "baseline": plan.baseline,
        "confidence": CONFIDENCE,
        "speed": speed,
        "rows": rows,
        "left_out": _left_out(folder),
        "notes": _notes(folder, done, speed),
    }


def _check_start(folder: ComparisonFolder, done: Mapping[Job, Any]) -> None:
    """Refuse a run that did not start from the weights of its seed."""
    first: dict[int, str] = {}
    for job in done:
        start = folder.run(job).initial().get("sha256", "weights of its own")
        if first.setdefault(job.seed, start) != start:
            raise UnfairError(f"{job.name} did not start from the weights of its seed's other runs")


def _fill_correct(folder: ComparisonFolder, variants: Mapping[str, _Variant]) -> None:
    """Read which images were right, of the seeds whose folds are all done."""
    plan = folder.plan
    parts = 1 if plan.folds is None else plan.folds
    targets: NDArray[Any] | None = None
    for variant in variants.values():
        for seed in plan.seeds:
            jobs = [job for job in variant.summaries if job.seed == seed]
            if len(jobs) < parts:
                continue
            found = [_predictions(folder.run(job), job) for job in jobs]
            target = np.concatenate([part["target"] for part in found])
            if targets is not None and not np.array_equal(target, targets):
                raise UnfairError(f"{jobs[0].name} was tested on other images than the others")
            targets = target
            predicted = np.concatenate([part["predicted"] for part in found])
            variant.correct[seed] = predicted == target


def _predictions(run: RunFolder, job: Job) -> dict[str, NDArray[Any]]:
    found = run.predictions()
    if not found:
        raise ConfigError(
            f"{job.name} is finished but has no predictions.npz; delete {str(run.path)!r} to have "
            "it run again"
        )
    return found


def _row(
    attention: str, variant: _Variant, measures: Mapping[str, Any], speed: Speed
) -> dict[str, Any]:
    interval = accuracy_interval(variant.table()) if variant.correct else None
    accuracies = [float(variant.correct[seed].mean()) for seed in sorted(variant.correct)]
    runs = [summary["test_accuracy"] for summary in variant.summaries.values()]
    first = next(iter(variant.summaries.values()), {})
    measured = ("latency_ms", "latency_batch", "latency_eval_ms", "latency_eval_batch")
    return {
        "attention": attention,
        "runs": len(variant.summaries),
        "accuracy": interval.mean if interval else None,
        "accuracy_low": interval.low if interval else None,
        "accuracy_high": interval.high if interval else None,
        "accuracies": accuracies,
        "accuracy_spread": statistics.stdev(runs) if len(runs) > 1 else None,
        **_speed(variant, measures.get("img_per_s") if speed == "alone" else None),
        **{key: measures.get(key) for key in measured},
        "peak_memory_mib": measures.get("peak_memory_mib"),
        "parameters": first.get("parameters"),
        "flops": first.get("flops"),
        "approximation_error": measures.get("approximation_error"),
        **dict.fromkeys(
            ("difference", "difference_low", "difference_high", "p_value", "p_corrected")
        ),
    }


def _speed(variant: _Variant, alone: float | None) -> dict[str, float | None]:
    """Seconds an epoch and images a second: as measured alone, or else of the runs' own epochs."""
    images = variant.images_per_epoch()
    if alone is not None and images is not None:
        return {"seconds_per_epoch": images / alone, "img_per_s": alone}
    return {key: variant.median(key) for key in ("seconds_per_epoch", "img_per_s")}


def _compare_with_baseline(
    rows: Sequence[dict[str, Any]], variants: Mapping[str, _Variant], baseline: str
) -> None:
    """Fill in the paired differences, on the seeds that both have."""
    tested, noise = [], _noise(list(variants.values()))
    for row in rows:
        mine, theirs = variants[row["attention"]], variants[baseline]
        shared = sorted(mine.correct.keys() & theirs.correct.keys())
        if row["attention"] == baseline or not shared:
            continue
        found = paired_difference(mine.table(shared), theirs.table(shared), noise=noise)
        row["difference"], row["p_value"] = found.mean, found.p_value
        row["difference_low"], row["difference_high"] = found.low, found.high
        tested.append(row)
    for row, corrected in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_corrected"] = corrected


def _noise(variants: Sequence[_Variant]) -> SeedNoise | None:
    """The scatter of seeds, from the attentions that have most of them."""
    most = max(len(variant.correct) for variant in variants)
    known = [variant for variant in variants if len(variant.correct) == most]
    shared = sorted(set.intersection(*(set(variant.correct) for variant in known)))
    if len(known) < 2 or not shared:
        return None
    return seed_noise([variant.table(shared) for variant in known])


def _left_out(folder: ComparisonFolder) -> list[dict[str, str]]:
    """The runs that are not in the table, and why."""
    left = []
    for job in folder.plan.jobs():
        state = folder.state(job)
        if state == "finished":
            continue
        status = folder.run(job).status()
        message = status.get("message") or "failed"
        reason = message if state == "failed" else f"not finished: {status.get('state', 'waiting')}"
        left.append({"run": job.name, "reason": reason})
    return left


def _whose_speed(folder: ComparisonFolder, done: Mapping[Job, Any]) -> Speed:
    measures = folder.measures()
    if done and all(measures.get(job.attention, {}).get("img_per_s") for job in done):
        return "alone"
    return "shared" if folder.trained_together() or len(_devices(folder, done)) > 1 else "own"


def _devices(folder: ComparisonFolder, done: Mapping[Job, Any]) -> list[str]:
    return sorted({str(folder.run(job).environment().get("device")) for job in done})


def _notes(folder: ComparisonFolder, done: Mapping[Job, Any], speed: Speed) -> list[str]:
    """What a reader of the table has to know."""
    notes = []
    devices = _devices(folder, done)
    if speed == "alone":
        notes.append("s/epoch and img/s were measured after training, one attention at a time")
    elif len(devices) > 1:
        notes.append(f"trained on several kinds of device ({', '.join(devices)}): compare no times")
    elif speed == "shared":
        notes.append(TOGETHER)
    if len(folder.plan.seeds) == 1:
        notes.append("one seed: intervals and tests speak of these trained models, not of others")
    measured = folder.measures()
    new = [name for name, found in measured.items() if not found.get("trained", True)]
    if new:
        names = "all attentions" if len(new) == len(folder.plan.attentions) else ", ".join(new)
        notes.append(f"measured with new weights, since no run has its own any more: {names}")
    return notes
