"""Tune every attention of a comparison in the same way before its runs, and describe the result.

Each attention has a search of its own (`saccade.study.tuning`) with the same number of trials, the
same first trial, seed, sampler and pruner. The trials of a search run one after another, so that
its draws do not depend on the number of workers; several workers take different searches. Trials
are judged on validation images only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from saccade.config import Config, Range
from saccade.errors import ConfigError, RunLockedError, TakenOver, TrainingError
from saccade.io import locked
from saccade.results import Results
from saccade.runs import PREDICTIONS
from saccade.study.attempts import MAX_ATTEMPTS, reason_of
from saccade.study.comparison.fairness import UnfairError
from saccade.study.comparison.folder import TUNED_SETTINGS, TUNING, ComparisonFolder
from saccade.study.comparison.plan import Plan
from saccade.study.tuning.results import write_results
from saccade.study.tuning.space import values_of
from saccade.study.tuning.trials import work as work_on
from saccade.study.workers import leave_if_asked
from saccade.train.progress import print_line
from saccade.train.signals import stop_signals

__all__ = [
    "check_settings",
    "check_untested",
    "choose_settings",
    "describe_candidates",
    "describe_tuning",
    "failed_searches",
    "is_searching",
    "rests_on",
    "search",
    "search_results",
    "unfinished",
    "unit_of",
]

POLL_S = 0.5

Say = Callable[[str], None]


def unit_of(attention: str) -> str:
    """Name of the search of an attention as a unit of work."""
    return f"{TUNING}/{attention}"


def is_searching(folder: ComparisonFolder) -> bool:
    """True if the comparison tunes its attentions and has not chosen their settings yet."""
    return folder.plan.trials is not None and folder.plan.settings is None


def search_results(folder: ComparisonFolder, attention: str) -> dict[str, Any]:
    """Results of the search of an attention so far; empty before its first trial.

    Raises:
        ConfigError: The file was changed, is of another search, or cannot be read.
    """
    own = folder.search(attention)
    if not (own.path / "results.json").exists():
        return {}
    values = own.read("results.json", "delete it")
    identity = own.identity()
    if identity["attention"] != attention:
        raise ConfigError(
            f"{str(own.path)!r} must be the search of {attention}, got that of "
            f"{identity['attention']}; restore it"
        )
    if values.get("search", identity) != identity:  # earlier versions did not record it
        raise ConfigError(f"{str(own.path / 'results.json')!r} is of another search; delete it")
    return values


def unfinished(folder: ComparisonFolder) -> list[str]:
    """Attentions whose search has not ended."""
    names = folder.plan.attentions
    return [name for name in names if not search_results(folder, name).get("complete")]


def search(
    folder: ComparisonFolder, *, since: float, unit: str | None = None, say: Say = print_line
) -> None:
    """Work on the searches of a comparison, or on one `unit`, until they have ended.

    Disk errors before the time `since` do not count.

    Raises:
        Preempted: A signal asked to stop; progress is saved.
        TrainingError: The disk failed, or workers died, too often.
    """
    with stop_signals() as stop:
        while names := [name for name in unfinished(folder) if unit in (None, unit_of(name))]:
            if not any(_try(folder, name, since, say) for name in names):
                stop.wait(POLL_S)
            leave_if_asked(stop, "two searches")


def _try(folder: ComparisonFolder, attention: str, since: float, say: Say) -> bool:
    """Run the trials of a search. Return False if another worker has it."""
    name = unit_of(attention)
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder.lock(name.replace("/", "-"))))
        except BlockingIOError:
            return False
        own = type(folder.search(attention)).open(folder.search(attention).path)
        results = write_results(own, own.load())
        if results["complete"]:
            return True
        ended = sum(row["state"] != "running" for row in results["trials"])
        failures = folder.attempts.failures(name.replace("/", "-"), ended, since=since)
        if len(failures) > MAX_ATTEMPTS:  # the search itself gives up a trial before
            raise TrainingError(f"{name}: {len(failures)} attempts failed: {reason_of(failures)}")
        attempt = folder.attempts.begin(name.replace("/", "-"), ended)
        try:
            with folder.attempts.ending(attempt):
                work_on(own, lambda line: say(f"{attention}: {line}"), since=since)
                write_results(own, own.load())
        except (RunLockedError, TakenOver):
            return False
    return True


def choose_settings(folder: ComparisonFolder) -> None:
    """Write the best values of each search, once all have ended."""
    check_untested(folder)
    settings = {name: _best_settings(folder, name) for name in folder.plan.attentions}
    folder.write(TUNED_SETTINGS, {"settings": settings})


def _best_settings(folder: ComparisonFolder, attention: str) -> dict[str, Any] | None:
    """The best settings that a search found; None if all of its trials failed."""
    best = search_results(folder, attention)["best"]
    return None if best is None else values_of(folder.search(attention).base(), best["params"])


def check_settings(folder: ComparisonFolder) -> None:
    """Refuse settings that are not those that the searches found, before runs use them.

    Results of a search that were deleted are made again.

    Raises:
        ConfigError: The settings are others. The message names an attention.
    """
    settings = folder.plan.settings
    if folder.plan.trials is None or settings is None:
        return
    for attention in folder.plan.attentions:
        if not search_results(folder, attention):  # they were deleted
            own = type(folder.search(attention)).open(folder.search(attention).path)
            write_results(own, own.load())
        found = _best_settings(folder, attention)
        if attention not in settings or settings[attention] != found:
            raise ConfigError(
                f"{str(folder.path / TUNED_SETTINGS)!r} must have the best settings of the search "
                f"of {attention}, {found}, got {settings.get(attention)}; delete it to choose them "
                "again"
            )


def check_untested(folder: ComparisonFolder) -> None:
    """Refuse searches of which a trial has results on test images."""
    for attention in folder.plan.attentions:
        own = folder.search(attention)
        for row in search_results(folder, attention).get("trials", ()):
            run = own.run(row["number"])
            summary = run.summary() if run.is_finished() and not run.damage() else {}
            if summary.get("test_accuracy") is not None or (run.path / PREDICTIONS).exists():
                raise UnfairError(
                    f"trial {row['number']} of {attention} has results on test images; settings "
                    f"may only be chosen on validation images; delete {str(own.path)!r}"
                )


def describe_tuning(folder: ComparisonFolder, run_seconds: float) -> dict[str, Any] | None:
    """The searches so far and their cost, as JSON values; None if nothing is tuned."""
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
