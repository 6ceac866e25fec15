"""`attention_weights`: the row-stochastic map of any mechanism, for chosen queries.

A linear attention never computes its map. Here the rows of Q queries are computed on demand, Q x S
numbers per head.
"""

from typing import Literal, get_args

from torch import Tensor

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops.linear import linear_weights
from saccade.ops.softmax import softmax_weights
from saccade.ops.taylor import taylor_weights

__all__ = ["Mechanism", "attention_weights"]

Mechanism = Literal["softmax", "taylor", "linear"]


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mechanism: Mechanism,
    queries: Tensor | slice | None = None,
    scale: float | None = None,
    coefficients: tuple[float, float, float] | None = None,
    eps: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The map (B, H, Q, S) of chosen queries; rows are convex.

    Args:
        q: Queries (B, H, N, D), or their features (B, H, N, M) for `linear`.
        k: Keys (B, H, S, D), or their features for `linear`.
        mechanism: Family of the attention.
        queries: Positions of the queries, as a slice or 1-D integer tensor; None = all.
        scale: As in `softmax_attention` and `taylor_attention`.
        coefficients: As in `taylor_attention`.
        eps: As in `linear_attention`.
        key_mask: (B, S), True = attend.
    """
    if mechanism not in get_args(Mechanism):
        raise UnknownNameError("mechanism", mechanism, get_args(Mechanism))
    given = {"scale": scale, "coefficients": coefficients, "eps": eps}
    taken = {"softmax": {"scale"}, "taylor": {"scale", "coefficients"}, "linear": {"eps"}}
    for name, value in given.items():
        if value is not None and name not in taken[mechanism]:
            raise ConfigError(f"{name}={value!r} does not apply to mechanism={mechanism!r}")
    if mechanism == "softmax":
        return softmax_weights(q, k, scale=scale, key_mask=key_mask, queries=queries)
    if mechanism == "taylor":
        coefficients = (0.5, 1.0, 1.0) if coefficients is None else coefficients
        return taylor_weights(
            q, k, scale=scale, coefficients=coefficients, key_mask=key_mask, queries=queries
        )
    eps = 1e-6 if eps is None else eps
    return linear_weights(q, k, eps=eps, key_mask=key_mask, queries=queries)
