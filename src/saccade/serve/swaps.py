"""The same weights with another attention, another temperature or another order of the series."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.cores import AttentionCore, TaylorCore
from saccade.layers.taylorshift import TaylorShiftCore
from saccade.models import VisionTransformer
from saccade.models.config import ViTConfig, override
from saccade.ops.arguments import select_queries
from saccade.ops.softmax import softmax_attention, softmax_weights
from saccade.ops.taylor import taylor_attention, taylor_weights, unit_rows
from saccade.ops.taylor.reference import taylor_weights_reference

__all__ = [
    "MAX_TEMPERATURE",
    "MIN_TEMPERATURE",
    "ORDERS",
    "Order",
    "SeriesCore",
    "Swap",
    "Swaps",
    "swapped",
]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0
FEATURE_SEED = 0
"""Seed of the random features where the model's configuration names none."""


@dataclass(frozen=True)
class Swap:
    """What is changed in a model.

    Attributes:
        temperature: The scores are divided by it.
        order: Order of the Taylor series, for attentions that are one; None leaves the attention
            as it is registered.
    """

    attention: str
    temperature: float = 1.0
    order: Order | None = None

    def __post_init__(self) -> None:
        entry = ATTENTIONS[self.attention]
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ConfigError(
                f"temperature must be a number from {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}, got "
                f"{self.temperature}"
            )
        if self.order is not None and not issubclass(entry.core_class, TaylorCore):
            object.__setattr__(self, "order", None)


def swapped(model: VisionTransformer, swap: Swap) -> VisionTransformer:
    """A model with the parameters of another one, and the changes of a swap.

    Parameters are shared, not copied, unless the swap changes them. Parameters that only the new
    attention has keep their initial values.

    Raises:
        ConfigError: The attention means nothing before it is trained.
    """
    config = model.config
    if (reason := ATTENTIONS[swap.attention].untrained) and swap.attention != config.attention:
        raise ConfigError(
            f"attention must be one that runs on the weights of {config.attention!r}, got "
            f"{swap.attention!r}: {reason}"
        )
    changes: dict[str, Any] = {"attn_drop_rate": 0.0}
    if swap.attention != config.attention:
        changes |= {"attention": swap.attention, "attention_options": _options(config, swap)}
    if config.feature_seed is None:
        changes["feature_seed"] = FEATURE_SEED
    with torch.random.fork_rng(devices=[]):
        new = VisionTransformer.from_config(override(config, changes), model.name)
    device = next(model.parameters()).device
    shared = _shared(model.state_dict(), new.state_dict())
    new.to(device).load_state_dict(shared, strict=False, assign=True)
    for block in new.blocks:
        _set_temperature(block.attn, swap.temperature)
        if swap.order is not None:
            assert isinstance(block.attn.core, TaylorCore)
            block.attn.core = SeriesCore(block.attn.core, swap.order)
    return new.eval().requires_grad_(False)


def _options(config: ViTConfig, swap: Swap) -> dict[str, Any]:
    """The options of the model's attention that the new one also has."""
    options = ATTENTIONS[swap.attention].options
    return {name: value for name, value in config.attention_options.items() if name in options}


def _shared(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: old[name] for name in new if name in old and old[name].shape == new[name].shape}


@torch.no_grad()
def _set_temperature(attn: MultiHeadAttention, temperature: float) -> None:
    """Divide the scores by the temperature, in the parameters that make them."""
    if temperature == 1:
        return
    core = attn.core
    if isinstance(core, TaylorShiftCore) and core.temperature is not None:
        core.temperature = nn.Parameter(core.temperature / temperature)
        return
    size = attn.num_heads * attn.head_dim
    for name, tensor in list(attn.qkv.named_parameters()):
        scaled = tensor.clone()
        scaled[:size] /= temperature  # the rows that make q
        setattr(attn.qkv, name, nn.Parameter(scaled))


class Swaps:
    """The latest swaps of one model."""

    def __init__(self, model: VisionTransformer, most: int = 24) -> None:
        self.model, self._most = model, most
        self._latest: OrderedDict[Swap, VisionTransformer] = OrderedDict()

    def get(self, swap: Swap) -> VisionTransformer:
        """The model with a swap."""
        if swap == Swap(self.model.config.attention):
            return self.model
        if swap not in self._latest:
            self._latest[swap] = swapped(self.model, swap)
        self._latest.move_to_end(swap)
        while len(self._latest) > self._most:
            self._latest.popitem(last=False)
        return self._latest[swap]


Order = Literal["0", "1", "2", "exact"]
ORDERS: tuple[Order, ...] = get_args(Order)
COEFFICIENTS = {"0": (0.0, 0.0, 1.0), "1": (0.0, 1.0, 1.0), "2": (0.5, 1.0, 1.0)}
"""(a, b, c) of c + b s + a s^2."""


class SeriesCore(AttentionCore):
    """A Taylor core with another order of its series."""

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
