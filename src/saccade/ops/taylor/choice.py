"""Which Taylor algorithm `algorithm="auto"` takes, and why."""

from typing import Literal, NamedTuple

from saccade.ops.taylor.thresholds import speed_threshold

__all__ = ["Choice", "explain_choice"]


class Choice(NamedTuple):
    """An algorithm and the reason for it."""

    algorithm: Literal["direct", "efficient"]
    reason: str


def explain_choice(num_queries: int, num_keys: int | None = None, *, head_dim: int) -> Choice:
    """The algorithm that `taylor_attention(..., algorithm="auto")` uses for one shape.

    The rule: `efficient` where it takes fewer FLOPs, counted with symmetric features. For
    self-attention that is more than `speed_threshold(head_dim, symmetric=True)` tokens; with
    unequal numbers of queries and keys their harmonic mean stands for the number of tokens.

    Args:
        num_queries: Number of queries N.
        num_keys: Number of keys; as many as queries by default.
        head_dim: Width D of a head.
    """
    keys = num_queries if num_keys is None else num_keys
    tokens = 2 * num_queries * keys / max(1, num_queries + keys)
    threshold = speed_threshold(head_dim, symmetric=True)
    tokens_text = f"{tokens:g} tokens" if keys == num_queries else f"{tokens:.1f} tokens on average"
    if tokens > threshold:
        reason = f"{tokens_text} > N0 = {threshold} at D={head_dim}: linear time takes fewer FLOPs"
        return Choice("efficient", reason)
    reason = f"{tokens_text} <= N0 = {threshold} at D={head_dim}: quadratic time takes fewer FLOPs"
    return Choice("direct", reason)
