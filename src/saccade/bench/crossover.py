"""From how many tokens on one mechanism is faster than another."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from saccade.bench.results import AttentionResult, Row

__all__ = ["crossover", "softmax_crossovers", "times_over_tokens"]


def crossover(slower: Mapping[int, float], faster: Mapping[int, float]) -> float | None:
    """The smallest N from which `faster` wins, up to the end of the grid.

    Between two N the times are taken as straight lines on a log-log scale, which is exact for
    powers of N.

    Args:
        slower: N -> time of the mechanism that is to lose for large N.
        faster: N -> time of the one that is to win.

    Returns:
        N; the first N of the grid where `faster` wins everywhere; None where it loses at the last.
    """
    grid = sorted(slower.keys() & faster.keys())
    leads = [log(slower[tokens] / faster[tokens]) for tokens in grid]
    if not grid or leads[-1] <= 0:
        return None
    last_loss = max((i for i, lead in enumerate(leads) if lead <= 0), default=None)
    if last_loss is None:
        return float(grid[0])
    low, high = leads[last_loss], leads[last_loss + 1]
    left, right = log(grid[last_loss]), log(grid[last_loss + 1])
    return exp(left - low / (high - low) * (right - left))


def times_over_tokens(rows: list[Row]) -> dict[int, float]:
    """N -> median of rows that differ in N alone (and in B, which a budget of tokens sets)."""
    return {row.tokens: row.timing.median_ms for row in rows if row.timing is not None}


def softmax_crossovers(result: AttentionResult) -> list[dict[str, object]]:
    """For every mechanism, D and pass: the N from which it beats the fastest softmax."""
    series: dict[tuple[str, int, str], list[Row]] = {}
    for row in result.rows:
        if row.family != "softmax" and row.timing is not None:
            series.setdefault((row.mechanism, row.head_dim, row.direction), []).append(row)
    found: list[dict[str, object]] = []
    for (mechanism, head_dim, direction), rows in series.items():
        softmax = {row.tokens: result.softmax_ms(row) for row in rows}
        known = {tokens: ms for tokens, ms in softmax.items() if ms is not None}
        if len(known) < 2:
            continue
        tokens = crossover(known, times_over_tokens(rows))
        key = {"mechanism": mechanism, "head_dim": head_dim, "direction": direction}
        found.append(key | {"tokens": tokens, "first_tokens": min(known)})
    return found
