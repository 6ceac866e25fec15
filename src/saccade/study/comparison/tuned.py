"""What the searches of a comparison found and cost, and which of its tables a claim rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.config import Config, Range
from saccade.results import Results
from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Plan
from saccade.study.comparison.search import search_results, unit_of

__all__ = ["describe_candidates", "describe_tuning", "failed_searches", "rests_on"]


def describe_tuning(folder: ComparisonFolder, run_seconds: float) -> dict[str, Any] | None:
    """The searches so far and their cost, as JSON values; None if nothing is tuned.

    Args:
        folder: The comparison.
        run_seconds: Training time of the finished runs.
    """
    if folder.plan.trials is None:
        return None
    rows = [_describe_search(folder, name) for name in folder.plan.attentions]
    seconds = sum(row["seconds"] for row in rows)
    total = seconds + run_seconds
    first = search_results(folder, folder.plan.attentions[0])
    return {
        "trials": folder.plan.trials,
        "metric": first.get("metric"),
        "sampler": first.get("sampler"),
        "pruner": first.get("pruner"),
        "attentions": rows,
        "seconds": round(seconds, 2),
        "run_seconds": round(run_seconds, 2),
        "share": round(seconds / total, 4) if total else None,
    }


def _describe_search(folder: ComparisonFolder, attention: str) -> dict[str, Any]:
    """One search. Its first trial has the shared setting."""
    results = search_results(folder, attention)
    trials, best = results.get("trials", []), results.get("best")
    states = [row["state"] for row in trials]
    base = folder.search(attention).base()
    return {
        "attention": attention,
        "trials": len(trials),
        **{state: states.count(state) for state in ("complete", "pruned", "failed")},
        "seconds": round(sum(row["seconds"] for row in trials), 2),
        "shared_value": next((row["value"] for row in trials if row["number"] == 0), None),
        "best_value": best["value"] if best else None,
        "best_trial": best["number"] if best else None,
        "settings": best["params"] if best else {},
        "space": {key: describe_candidates(base, key) for key in base.search},
    }


def describe_candidates(base: Config, key: str) -> str:
    """The candidates of a key, in words."""
    candidates = base.search[key]
    if isinstance(candidates, Range):
        scale = ", log" if candidates.log else ""
        return f"{candidates.low:g} to {candidates.high:g}{scale}"
    return ", ".join("default" if value is None else str(value) for value in candidates)


def failed_searches(folder: ComparisonFolder) -> list[dict[str, str]]:
    """Searches without a result, with the reason."""
    settings = folder.plan.settings or {}
    failed = [name for name in settings if settings[name] is None]
    return [{"run": unit_of(name), "reason": _failure(folder, name)} for name in failed]


def _failure(folder: ComparisonFolder, attention: str) -> str:
    trials: Sequence[Mapping[str, Any]] = search_results(folder, attention).get("trials", ())
    first = trials[0]["reason"] if trials else "no trial"
    return f"all {len(trials)} trials failed, so it has no tuned setting; the first: {first}"


def rests_on(plan: Plan, shared: Results, tuned: Results | None) -> str:
    """A sentence on the setting that the claims of the comparison rest on."""
    rate = f"learning rate {plan.base.optim.lr:g}"
    if plan.trials is None:
        return (
            f"Every claim rests on one shared setting ({rate}), tuned for none of the attentions: "
            "it is about this recipe, and the ranking may differ with another learning rate."
        )
    if tuned is None:
        return (
            f"The attentions are not tuned yet: until they are, every claim rests on one shared "
            f"setting ({rate})."
        )
    told = (
        "Claims about which attention is better rest on the tuned table: each attention had "
        f"{plan.trials} trials on validation images, with the same first trial (the recipe's own "
        "setting), seed, sampler and pruner. Claims from the table of shared settings hold for the "
        f"recipe's own setting ({rate}) only."
    )
    if differing := _other_verdicts(shared, tuned):
        return f"{told} The verdicts of the two tables differ for {', '.join(differing)}."
    return told


def _other_verdicts(shared: Results, tuned: Results) -> list[str]:
    """Pairs on which the two tables claim different things."""
    before, after = _verdicts(shared), _verdicts(tuned)
    both = [pair for pair in before if pair in after]
    return [f"{a} and {b}" for a, b in both if before[a, b] != after[a, b]]


def _verdicts(found: Results) -> dict[tuple[str, str], int]:
    """1 or -1 for each pair that differs, 0 for the others."""
    claims = (*found.against_baseline, *found.others)
    return {
        (c.first, c.second): 0 if not c.holds else 1 if c.difference > 0 else -1 for c in claims
    }
