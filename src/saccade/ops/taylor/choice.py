"""Which Taylor algorithm `algorithm="auto"` takes, and why."""

from typing import Literal, NamedTuple

from saccade.ops.taylor.thresholds import direct_flops, efficient_flops

__all__ = ["Choice", "explain_choice"]


class Choice(NamedTuple):
    """An algorithm and the reason for it."""

    algorithm: Literal["direct", "efficient"]
    reason: str


def explain_choice(num_queries: int, num_keys: int | None = None, *, head_dim: int) -> Choice:
    """The algorithm that `taylor_attention(..., algorithm="auto")` uses for one shape.

    The rule: the form with fewer FLOPs, counted with symmetric features. For self-attention this
    is `efficient` from `speed_threshold(head_dim, symmetric=True)` tokens on.

    Args:
        num_queries: Number of queries N.
        num_keys: Number of keys; as many as queries by default.
        head_dim: Width D of a head.
    """
    keys = num_queries if num_keys is None else num_keys
    direct = direct_flops(num_queries, keys, head_dim)
    efficient = efficient_flops(num_queries, keys, head_dim)
    shape = f"{num_queries} queries, {keys} keys, D={head_dim}"
    counts = f"{direct:.3g} FLOPs a head direct, {efficient:.3g} efficient"
    if efficient < direct:
        return Choice("efficient", f"{shape}: {counts}; linear time is cheaper")
    return Choice("direct", f"{shape}: {counts}; quadratic time is cheaper")
