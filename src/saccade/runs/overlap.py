"""Detect from run folders whether runs trained at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from saccade.errors import ConfigError
from saccade.runs.folder import RunFolder

TOGETHER = "runs trained at the same time: on one device they slowed each other down"

Span = tuple[float, float]


def trained_together(runs: Iterable[RunFolder]) -> bool:
    """True if the time spans of two runs overlap, finished or not.

    Runs on different machines count too, because the machine of a run is not known. Runs whose
    start or end time is missing or unreadable are ignored.
    """
    spans = sorted(span for run in runs for span in _spans(run))
    return any(after[0] + 1 < before[1] for before, after in pairwise(spans))


def _spans(run: RunFolder) -> Iterator[Span]:
    """Time spans in which a run trained, in seconds since the epoch.

    If a run was later restarted from step 0, the end of the earlier attempt is unknown, so its span
    has zero length. The last start from step 0 counts until the end of the run, including pauses.
    """
    try:
        environment, ended = run.environment(), run.status().get("updated")
        resumed = environment.get("resumed") or []
        starts = [_seconds(start["time"]) for start in (environment, *resumed)]
        restarts = [place for place, start in enumerate(resumed, 1) if start.get("step") == 0]
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if isinstance(ended, int | float):
        kept = restarts[-1] if restarts else 0
        yield from ((start, start) for start in starts[:kept])
        yield starts[kept], ended


def _seconds(time: Any) -> float:
    return datetime.fromisoformat(time).timestamp()
