"""Whether runs trained at the same time, told from their folders alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from saccade.errors import ConfigError
from saccade.runs import RunFolder

__all__ = ["TOGETHER", "trained_together"]

TOGETHER = "runs trained at the same time: on one device they slowed each other down"

Span = tuple[float, float]


def trained_together(runs: Iterable[RunFolder]) -> bool:
    """Whether a run began before the one that began before it had ended, finished or not.

    On which machine a run was is not known, so that runs on two count as well. A run of which
    either time is missing or cannot be read does not count.
    """
    spans = sorted(span for run in runs for span in _spans(run))
    return any(after[0] + 1 < before[1] for before, after in pairwise(spans))


def _spans(run: RunFolder) -> Iterator[Span]:
    """From when to when a run trained, in seconds.

    A start of which nothing was kept, since the run was resumed from its first step, is a moment:
    when that attempt ended is not known. From the start that was kept a run counts as training to
    its end, pauses and all.
    """
    try:
        environment, ended = run.environment(), run.status().get("updated")
        resumed = environment.get("resumed") or []
        starts = [_seconds(start["time"]) for start in (environment, *resumed)]
        anew = [place for place, start in enumerate(resumed, 1) if start.get("step") == 0]
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if isinstance(ended, int | float):
        kept = anew[-1] if anew else 0
        yield from ((start, start) for start in starts[:kept])
        yield starts[kept], ended


def _seconds(time: Any) -> float:
    return datetime.fromisoformat(time).timestamp()
