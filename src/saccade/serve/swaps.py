"""The same weights with another attention, another temperature or another order of the series."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.attention import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.cores import TaylorCore
from saccade.layers.taylorshift import TaylorShiftCore
from saccade.models import VisionTransformer
from saccade.models.config import ViTConfig, override
from saccade.serve.series import Order, SeriesCore

__all__ = ["MAX_TEMPERATURE", "MIN_TEMPERATURE", "Swap", "Swaps", "swapped"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0
FEATURE_SEED = 0
"""Seed of the random features where the model's configuration names none."""


@dataclass(frozen=True)
class Swap:
    """What is changed in a model.

    Attributes:
        attention: Name of the attention.
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
    """The latest swaps of one model.

    Args:
        model: The model, in evaluation mode.
        most: How many are kept.
    """

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
