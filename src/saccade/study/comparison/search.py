"""Tune every attention of a comparison alike, before its runs.

Each attention has a search of its own (`saccade.study.tuning`) with the same number of trials, the
same first trial, seed, sampler and pruner. The trials of a search run one after another, so that
its draws do not depend on the number of workers; several workers take different searches. Trials
are judged on validation images only.
"""

from __future__ import annotations

import time
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
from saccade.train.signals import StopRequest, stop_signals

__all__ = [
    "check_settings",
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
        ConfigError: The file was changed, is of another search, or cannot be read.
    """
    own = folder.search(attention)
    path = own.path / "results.json"
    if not path.exists():
        return {}
    values = read_json_object(path)
    if not is_unchanged(values):
        raise ConfigError(f"{str(path)!r} was changed after it was written; delete it")
    identity = own.identity()
    if identity["attention"] != attention:
        raise ConfigError(
            f"{str(own.path)!r} must be the search of {attention}, got that of "
            f"{identity['attention']}; restore it"
        )
    if values.get("search", identity) != identity:  # earlier versions did not record it
        raise ConfigError(f"{str(path)!r} is of another search; delete it")
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
                _wait(stop)
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


def _wait(stop: StopRequest) -> None:
    until = time.monotonic() + POLL_S
    while not stop.signal and time.monotonic() < until:
        time.sleep(0.05)


def choose_settings(folder: ComparisonFolder) -> None:
    """Write the best values of each search, once all have ended.

    Raises:
        UnfairError: A trial was tested on test images.
    """
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
