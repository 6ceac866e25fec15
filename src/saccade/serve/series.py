"""Attention whose weights are the Taylor series of exp, cut off at a chosen order.

    order 0: 1        order 1: 1 + s        order 2: 1 + s + s^2/2        exact: exp(s)

s are the scores of a Taylor core, with its scale, normalization and temperature. Order 1 can have
weights below zero, which is why Taylor attention stops at an even order. It is shown here, and
nowhere trained. Quadratic in N. Layout (B, H, N, D).
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from saccade.errors import UnknownNameError
from saccade.layers.cores import AttentionCore, TaylorCore
from saccade.layers.taylorshift import TaylorShiftCore
from saccade.ops.arguments import select_queries
from saccade.ops.softmax import softmax_attention, softmax_weights
from saccade.ops.taylor import taylor_attention, taylor_weights, unit_rows
from saccade.ops.taylor.reference import taylor_weights_reference

__all__ = ["ORDERS", "Order", "SeriesCore"]

Order = Literal["0", "1", "2", "exact"]
ORDERS: tuple[Order, ...] = get_args(Order)
COEFFICIENTS = {"0": (0.0, 0.0, 1.0), "1": (0.0, 1.0, 1.0), "2": (0.5, 1.0, 1.0)}
"""(a, b, c) of c + b s + a s^2."""


class SeriesCore(AttentionCore):
    """A Taylor core with another order of its series.

    Args:
        core: The core whose scores, parameters and output scaling are used.
        order: One of `ORDERS`.
    """

    def __init__(self, core: TaylorCore, order: Order) -> None:
        if order not in ORDERS:
            raise UnknownNameError("order", order, ORDERS)
        super().__init__(core.num_heads, core.head_dim)
        self.core, self.order = core, order

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Weights of the chosen order times v."""
        q, k, scale = self._scored(q, k)
        if self.order == "exact":
            return softmax_attention(q, k, v, scale=scale, key_mask=key_mask)
        if self.order == "2":
            return taylor_attention(q, k, v, scale=scale, key_mask=key_mask)
        return self._low_order(q, k, scale, key_mask) @ v

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the chosen order; with order 1 some weights may be negative."""
        q, k, scale = self._scored(q, k)
        if self.order == "exact":
            return softmax_weights(q, k, scale=scale, key_mask=key_mask, queries=queries)
        if self.order == "2":
            return taylor_weights(q, k, scale=scale, key_mask=key_mask, queries=queries)
        return self._low_order(select_queries(q, queries), k, scale, key_mask)

    def _low_order(self, q: Tensor, k: Tensor, scale: float, key_mask: Tensor | None) -> Tensor:
        coefficients = COEFFICIENTS[self.order]
        return taylor_weights_reference(
            q, k, scale=scale, coefficients=coefficients, key_mask=key_mask
        )

    def _scored(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """q, k and the scale whose product are the scores of the core."""
        core, scale = self.core, self.head_dim**-0.5
        if not isinstance(core, TaylorShiftCore):
            return q, k, scale
        if core.normalize_input:
            assert core.temperature is not None
            return *unit_rows(q, k, core.temperature.flatten()), 1.0
        factor = self.num_heads**-0.5 if core.temperature is None else core.temperature
        return q * factor, k, scale

    def finish(self, out: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """The output scaling of the core."""
        return self.core.finish(out, k, key_mask)

    def flops(self, num_tokens: int) -> int:
        """4 N^2 D per head."""
        return 4 * self.num_heads * num_tokens**2 * self.head_dim
