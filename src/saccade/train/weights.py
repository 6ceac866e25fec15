"""Copies of the weights: the moving average and the best so far.

A copy is a dictionary with the keys of the model's `state_dict`, on the model's device. Copies of
sharded models are sharded too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["MovingAverage", "Weights", "snapshot", "swapped_in"]

Weights = dict[str, Tensor]


def snapshot(model: nn.Module) -> Weights:
    """A copy of the model's current weights and buffers."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@contextmanager
def swapped_in(model: nn.Module, weights: Weights | None) -> Iterator[None]:
    """Give the model other weights within a block; None changes nothing."""
    if weights is None:
        yield
        return
    live = snapshot(model)
    _fill(model, weights)
    try:
        yield
    finally:
        _fill(model, live)


class MovingAverage:
    """The exponential moving average of the weights, buffers included.

    The decay grows as (1 + step) / (10 + step) up to `decay`, so that the random initial weights
    soon lose their influence.

    Args:
        model: The network whose weights are averaged.
        decay: Fraction of the old average that a step keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = snapshot(model)
        live = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        floating = [name for name, tensor in live.items() if tensor.is_floating_point()]
        sharded = [name for name in floating if hasattr(live[name], "to_local")]
        whole = [name for name in floating if name not in sharded]  # buffers are never sharded
        self._pairs = [
            ([self.weights[name] for name in names], [live[name] for name in names])
            for names in (sharded, whole)
            if names
        ]
        counts = [name for name in live if name not in floating]
        self._counts = [self.weights[name] for name in counts]
        self._live_counts = [live[name] for name in counts]

    def share(self, step: int) -> float:
        """Weight of the live weights in the update after optimizer step `step` (1 is the first)."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, share: Tensor) -> None:
        """Move the average toward the live weights by the fraction `share`, a scalar tensor."""
        for averages, live in self._pairs:
            ways = torch._foreach_sub(live, averages)
            torch._foreach_mul_(ways, share)
            torch._foreach_add_(averages, ways)
        if self._counts:
            torch._foreach_copy_(self._counts, self._live_counts)


@torch.no_grad()
def _fill(model: nn.Module, weights: Weights) -> None:
    for name, tensor in model.state_dict().items():
        tensor.copy_(weights[name])
