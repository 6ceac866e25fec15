"""Compute `results.json` of a comparison from its run folders, with intervals and tests."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from saccade.errors import ConfigError
from saccade.layers.attentions import ATTENTIONS, describe_kind
from saccade.nouns import noun_of
from saccade.results import (
    Accuracy,
    Answers,
    Claim,
    Results,
    TestedRun,
    results_of,
    same_images,
    shared_rate_note,
    skipped_note,
)
from saccade.runs import TOGETHER, Predictions, RunFolder, read_predictions
from saccade.stats import CONFIDENCE
from saccade.study.comparison.fairness import UnfairError, check_run, check_together
from saccade.study.comparison.folder import VERSION, ComparisonFolder
from saccade.study.comparison.plan import Job, Plan
from saccade.study.comparison.search import describe_tuning, failed_searches, is_searching, rests_on

__all__ = ["collect"]

Speed = Literal["own", "alone", "shared"]
"""Source of the speeds in the table.

`own`: the runs themselves, which ran one after another on one kind of device. `alone`: measured
after training. `shared`: the runs themselves, which overlapped or used different devices, so that
their speeds cannot be compared.
"""


@dataclass
class _Variant:
    """The finished runs of one attention, with their summaries."""

    summaries: dict[Job, dict[str, Any]]

    def median(self, key: str) -> float | None:
        """Median of a summary value over the runs."""
        values = [s[key] for s in self.summaries.values() if s.get(key) is not None]
        return statistics.median(values) if values else None

    def images_per_epoch(self) -> float | None:
        """Images per epoch of the run with the median speed.

        Taking the medians of both factors separately could mix two runs.
        """
        runs = [s for s in self.summaries.values() if s.get("img_per_s") is not None]
        if not runs:
            return None
        run = sorted(runs, key=lambda s: float(s["img_per_s"]))[(len(runs) - 1) // 2]
        return float(run["seconds_per_epoch"] * run["img_per_s"])


def collect(folder: ComparisonFolder) -> dict[str, Any]:
    """The results so far, as written to `results.json`.

    Raises:
        UnfairError: A run does not match the plan.
    """
    plan = folder.plan
    done: dict[Job, dict[str, Any]] = {}
    for job in folder.finished():
        check_run(folder.run(job), plan, job)
        done[job] = folder.run(job).summary()
    check_together(done)
    _check_start(folder, done)
    speed = _whose_speed(folder, done)
    shared = _table(folder, [job for job in plan.jobs() if not job.is_tuned], done, speed)
    tuned = _table(folder, plan.tuned_jobs(), done, speed) if plan.settings is not None else None
    tuning = describe_tuning(folder, sum(float(s.get("seconds") or 0) for s in done.values()))
    return {
        "version": VERSION,
        "complete": len(done) == len(plan.jobs()) and not is_searching(folder),
        "measure": "test_accuracy" if plan.folds is None else "fold_accuracy",
        "baseline": plan.baseline,
        "confidence": CONFIDENCE,
        "speed": speed,
        "input": _noun(folder, done),
        "images": shared.found.num_images,
        "images_skipped": shared.found.num_skipped,
        "rows": shared.rows,
        "pairs": shared.pairs,
        "rests_on": rests_on(plan, shared.found, tuned.found if tuned else None),
        "tuning": tuning,
        "tuned": {"rows": tuned.rows, "pairs": tuned.pairs} if tuned else None,
        "left_out": _left_out(folder),
        "notes": _notes(folder, done, speed, shared.found),
    }


@dataclass(frozen=True)
class _Table:
    """One table of the comparison: its statistics, and its rows and pairs as JSON values."""

    found: Results
    rows: list[dict[str, Any]]
    pairs: list[dict[str, Any]]


def _table(
    folder: ComparisonFolder,
    jobs: Sequence[Job],
    done: Mapping[Job, dict[str, Any]],
    speed: Speed,
) -> _Table:
    """The table of some of the runs, with one row for each attention."""
    plan, measures = folder.plan, folder.measures()
    names = [name for name in plan.attentions if any(job.attention == name for job in jobs)]
    variants = {
        name: _Variant({j: done[j] for j in jobs if j.attention == name and j in done})
        for name in names
    }
    found = results_of(
        {
            name: [_tested(folder.run(job), plan, job, s) for job, s in variant.summaries.items()]
            for name, variant in variants.items()
        },
        plan.baseline if plan.baseline in names else None,
    )
    _check_images(found)
    claims = {claim.first: claim for claim in found.against_baseline}
    setups = {job.attention: job.setup for job in jobs}
    has_local_conv = bool(plan.base.model.overrides.get("local_conv"))
    rows = [
        {
            "attention": name,
            "setup": setups[name],
            "kind": describe_kind(name, local_conv=has_local_conv),
            "length": ATTENTIONS[name].length,
            "runs": len(variants[name].summaries),
            **_accuracy(found.accuracies[name]),
            **_costs(variants[name], measures.get(setups[name], {}), speed),
            **_difference(claims.get(name)),
        }
        for name in names
    ]
    pairs = [
        {"first": claim.first, "second": claim.second, **_difference(claim)}
        for claim in found.others
    ]
    return _Table(found, rows, pairs)


def _check_start(folder: ComparisonFolder, done: Mapping[Job, Any]) -> None:
    """Refuse runs of one seed that started from different weights."""
    first: dict[int, str] = {}
    for job in done:
        start = folder.run(job).initial().get("sha256", "other weights")
        if first.setdefault(job.seed, start) != start:
            raise UnfairError(
                f"{job.name} did not start from the same weights as the other runs of its seed"
            )


def _tested(run: RunFolder, plan: Plan, job: Job, summary: Mapping[str, Any]) -> TestedRun:
    return TestedRun(
        seed=job.seed,
        fold=job.fold or 0,
        folds=plan.folds or 1,
        accuracy=summary["test_accuracy"],
        predictions=_predictions(run, job),
    )


def _predictions(run: RunFolder, job: Job) -> Predictions:
    found = read_predictions(run, len(run.dataset().get("class_names", ())))
    if found is None:
        raise ConfigError(
            f"{job.name} is finished but has no predictions.npz; delete {str(run.path)!r} to "
            "train it again"
        )
    return found


def _check_images(found: Results) -> None:
    """Refuse runs that were tested on different images."""
    first: Answers | None = None
    for name, seeds in found.answers.items():
        for seed, answers in seeds.items():
            first = first or answers
            if not same_images(first, answers):
                raise UnfairError(
                    f"{name}/seed-{seed} was tested on different images than the other runs"
                )


def _accuracy(found: Accuracy) -> dict[str, Any]:
    return {
        "accuracy": found.mean,
        "accuracy_low": found.low,
        "accuracy_high": found.high,
        "accuracies": list(found.by_seed.values()),
        "accuracy_spread": found.spread,
        "images": found.num_images,
        "images_skipped": found.num_skipped,
    }


def _difference(claim: Claim | None) -> dict[str, float | None]:
    return {
        "difference": claim.difference if claim else None,
        "difference_low": claim.low if claim else None,
        "difference_high": claim.high if claim else None,
        "p_value": claim.p_value if claim else None,
        "p_corrected": claim.p_corrected if claim else None,
    }


def _costs(variant: _Variant, measures: Mapping[str, Any], speed: Speed) -> dict[str, Any]:
    first = next(iter(variant.summaries.values()), {})
    measured = ("latency_ms", "latency_batch", "latency_eval_ms", "latency_eval_batch")
    return {
        **_speed(variant, measures.get("img_per_s") if speed == "alone" else None),
        **{key: measures.get(key) for key in measured},
        "peak_memory_mib": measures.get("peak_memory_mib"),
        "parameters": first.get("parameters"),
        "flops": first.get("flops"),
        "approximation_error": measures.get("approximation_error"),
    }


def _speed(variant: _Variant, alone: float | None) -> dict[str, float | None]:
    """Seconds per epoch and images per second, measured alone or else from the runs' epochs."""
    images = variant.images_per_epoch()
    if alone is not None and images is not None:
        return {"seconds_per_epoch": images / alone, "img_per_s": alone}
    return {key: variant.median(key) for key in ("seconds_per_epoch", "img_per_s")}


def _left_out(folder: ComparisonFolder) -> list[dict[str, str]]:
    """Runs and searches that are missing from the tables, with the reason."""
    left = failed_searches(folder)
    for job in folder.plan.jobs():
        state = folder.state(job)
        if state == "finished":
            if damage := folder.damage(job):
                left.append({"run": job.name, "reason": f"damaged: {damage}"})
            continue
        status = folder.run(job).status()
        message = status.get("message") or "failed"
        reason = message if state == "failed" else f"not finished: {status.get('state', 'waiting')}"
        left.append({"run": job.name, "reason": reason})
    return left


def _whose_speed(folder: ComparisonFolder, done: Mapping[Job, Any]) -> Speed:
    measures = folder.measures()
    if done and all(measures.get(job.setup, {}).get("img_per_s") for job in done):
        return "alone"
    return "shared" if folder.trained_together() or len(_devices(folder, done)) > 1 else "own"


def _devices(folder: ComparisonFolder, done: Mapping[Job, Any]) -> list[str]:
    return sorted({str(folder.run(job).environment().get("device")) for job in done})


def _noun(folder: ComparisonFolder, done: Iterable[Job]) -> str:
    """What an input of the runs is, in the singular; an image before the first has finished."""
    return next((noun_of(folder.run(job).dataset().get("kind")) for job in done), "image")


def _notes(
    folder: ComparisonFolder, done: Mapping[Job, Any], speed: Speed, found: Results
) -> list[str]:
    """Notes that a reader needs to interpret the table."""
    notes = [shared_rate_note(folder.plan.base.optim.lr, is_tuned=folder.plan.trials is not None)]
    if found.num_skipped:
        notes.append(skipped_note(found.num_images, found.num_skipped, _noun(folder, done)))
    devices = _devices(folder, done)
    if speed == "alone":
        notes.append("s/epoch and img/s were measured after training, one attention at a time")
    elif len(devices) > 1:
        notes.append(
            f"trained on several kinds of device ({', '.join(devices)}): do not compare times"
        )
    elif speed == "shared":
        notes.append(TOGETHER)
    if len(folder.plan.seeds) == 1:
        notes.append(
            "one seed: intervals and tests are about these trained models, not about other seeds"
        )
    elif single := [c for c in (*found.against_baseline, *found.others) if c.has_one_seed]:
        pairs = ", ".join(f"{claim.first} and {claim.second}" for claim in single)
        notes.append(
            f"one seed in common ({pairs}): these tests are about the trained models, not about "
            "other seeds"
        )
    measured = folder.measures()
    new = [name for name, found in measured.items() if not found.get("trained", True)]
    if new:
        setups = {job.setup for job in folder.plan.jobs()}
        names = "all attentions" if len(new) == len(setups) else ", ".join(new)
        notes.append(
            f"measured with new weights, because no run still has its trained weights: {names}"
        )
    return notes
