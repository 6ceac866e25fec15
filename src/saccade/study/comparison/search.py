"""Tune every attention of a comparison alike, before its runs.

Each attention has a search of its own (`saccade.study.tuning`) with the same number of trials, the
same first trial, seed, sampler and pruner. The trials of a search run one after another, so that
its draws do not depend on the number of workers; several workers take different searches. Trials
are judged on validation images only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from saccade.errors import ConfigError, RunLockedError, TakenOver, TrainingError
from saccade.io import is_unchanged, locked, read_json_object
from saccade.runs import PREDICTIONS
from saccade.study.attempts import MAX_ATTEMPTS, reason_of
from saccade.study.comparison.fairness import UnfairError
from saccade.study.comparison.folder import TUNED_SETTINGS, TUNING, ComparisonFolder
from saccade.study.tuning.results import write_results
from saccade.study.tuning.space import values_of
from saccade.study.tuning.trials import work as work_on
from saccade.study.workers import leave_if_asked
from saccade.train.progress import print_line
from saccade.train.signals import stop_signals

__all__ = [
    "check_untested",
    "choose_settings",
    "is_searching",
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
        ConfigError: The file was changed or cannot be read.
    """
    path = folder.search(attention).path / "results.json"
    if not path.exists():
        return {}
    values = read_json_object(path)
    if not is_unchanged(values):
        raise ConfigError(f"{str(path)!r} was changed after it was written; delete it")
    return values


def unfinished(folder: ComparisonFolder) -> list[str]:
    """Attentions whose search has not ended."""
    names = folder.plan.attentions
    return [name for name in names if not search_results(folder, name).get("complete")]


def search(
    folder: ComparisonFolder, *, since: float, unit: str | None = None, say: Say = print_line
) -> None:
    """Work on the searches of a comparison until they have ended.

    Args:
        folder: The comparison.
        since: Disk errors before this time do not count.
        unit: Name of the only search to work on; all searches by default.
        say: Called with each line of progress output.

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
    """Write the best values of each search, once all have ended.

    Raises:
        UnfairError: A trial was tested on test images.
    """
    check_untested(folder)
    settings: dict[str, Any] = {}
    for attention in folder.plan.attentions:
        best = search_results(folder, attention)["best"]
        base = folder.search(attention).base()
        settings[attention] = None if best is None else values_of(base, best["params"])
    folder.write(TUNED_SETTINGS, {"settings": settings})


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
