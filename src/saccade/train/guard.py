"""Detect non-finite steps before they change the weights, and find the layer they come from.

The loss and the gradient norm of every step are checked on the device. The first bad step sets a
flag on the device; while it is set, the optimizers leave the weights unchanged. The host reads the
flag only now and then. It then repeats the step with the same data, weights and random numbers, and
checks every layer. Non-finite outputs of a trained model are traced in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import TrainingError

__all__ = ["FiniteGuard", "check_outputs", "first_bad_layer", "outputs_error"]


class FiniteGuard:
    """Remembers, on the device, the first step whose loss or gradient was not finite."""

    def __init__(self, device: torch.device) -> None:
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=device)
        self.found_inf = torch.zeros((), device=device)

    def watch(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> None:
        """Check one step; after a bad one `found_inf` stays 1."""
        finite = (loss.detach() + norm).abs() < torch.inf
        is_unchanged = finite | (self._first_bad >= 0)
        self._first_bad.copy_(torch.where(is_unchanged, self._first_bad, step))
        self.found_inf.copy_(self._first_bad >= 0)

    def bad_step(self) -> int:
        """The first bad step, or -1. This waits for the device."""
        return int(self._first_bad.item())


def first_bad_layer(model: nn.Module, backward: Callable[[], Any]) -> str | None:
    """Run a forward and backward pass; return where the first non-finite number appears.

    Returns:
        A phrase such as "output of blocks.3.attn", or None if all numbers are finite.
    """
    for name, p in model.named_parameters():
        if not _finite(p):
            return f"weights of {name}"
    found: list[str] = []
    handles = [
        module.register_forward_hook(_note_output(name, found))
        for name, module in model.named_modules()
        if name and not any(module.children())
    ]
    handles += [
        p.register_post_accumulate_grad_hook(_note_gradient(name, found))  # type: ignore[no-untyped-call]
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    try:
        backward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def check_outputs(model: nn.Module, images: Tensor, logits: Tensor) -> None:
    """Raise if the logits that a trained model computed for the images are not finite."""
    if not _finite(logits):
        raise outputs_error(model, [images])


@torch.no_grad()
def outputs_error(model: nn.Module, batches: Iterable[Tensor]) -> TrainingError:
    """The error for non-finite outputs of a trained model; it names the layer if one is found."""
    places = (first_bad_layer(model, partial(model, images)) for images in batches)
    where = next((place for place in places if place), None)
    return TrainingError(
        "the model's outputs are not finite" + (f", first in the {where}" if where else "")
    )


def _note_output(name: str, found: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not _finite(output):
            found.append(f"output of {name}")

    return hook


def _note_gradient(name: str, found: list[str]) -> Callable[[Tensor], None]:
    def hook(p: Tensor) -> None:
        if p.grad is not None and not _finite(p.grad):
            found.append(f"gradient of {name}")

    return hook


def _finite(tensor: Tensor) -> bool:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bool(torch.isfinite(local).all())
