"""Find the number of tokens from which one mechanism is faster than another."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from saccade.bench.results import AttentionResult, Row

__all__ = ["crossover", "softmax_crossovers", "times_over_tokens"]


def crossover(slower: Mapping[int, float], faster: Mapping[int, float]) -> float | None:
    """The smallest N from which `faster` is faster, up to the end of the grid.

    Times between two N are interpolated linearly on log axes, which is exact for powers of N.

    Args:
        slower: Time by N of the mechanism that should be slower for large N.
        faster: Time by N of the other mechanism.

    Returns:
        The crossing; the first N of the grid if `faster` is always faster; None if it is slower at
        the last N.
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
    """The medians by N of rows that differ only in N (and in B, which a token budget sets)."""
    return {row.tokens: row.timing.median_ms for row in rows if row.timing is not None}


def softmax_crossovers(result: AttentionResult) -> list[dict[str, object]]:
    """For every mechanism, D and pass, the N from which it is faster than the fastest softmax."""
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
