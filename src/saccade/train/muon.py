"""Muon (torch's own) with all matrices of one shape moved at once.

torch takes the matrices one by one, some twenty small launches for each, and the device waits for
the host. Here matrices of one shape are stacked: momentum, Newton-Schulz iteration and step are
batched, with torch's state, settings and numbers. Weights and momenta stay as they are, on the
device, while the optimiser's `found_inf` tensor is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Muon

__all__ = ["BatchedMuon", "MaskedMuon"]


class BatchedMuon(Muon):
    """Muon for matrices that lie whole on one device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for params in shapes.values():
                self._move(params, group)
        return loss

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        grads = torch.stack([p.grad for p in params if p.grad is not None])  # (G, A, B)
        weights, before = torch.stack(params), torch.stack(buffers)
        momentum, lr = group["momentum"], group["lr"]
        after = before.lerp(grads, 1 - momentum)
        update = orthogonalise(
            grads.lerp(after, momentum) if group["nesterov"] else after,
            coefficients=group["ns_coefficients"],
            steps=group["ns_steps"],
            eps=group["eps"],
        )
        rows, columns = weights.shape[1:]
        moved = weights * (1 - lr * group["weight_decay"])
        moved -= update.to(moved.dtype) * (lr * max(1.0, rows / columns) ** 0.5)
        if (found_inf := getattr(self, "found_inf", None)) is not None:
            moved = torch.where(found_inf > 0, weights, moved)
            after = torch.where(found_inf > 0, before, after)
        torch._foreach_copy_([*params, *buffers], [*moved.unbind(), *after.unbind()])


class MaskedMuon(Muon):
    """Muon for matrices that are sharded: torch's step, undone where a gradient was not finite."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of torch's Muon, undone on the device while `found_inf` is 1."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            return super().step(closure)  # type: ignore[no-untyped-call, no-any-return]
        params = [p for group in self.param_groups for p in group["params"]]
        buffers = [b for p in params if (b := self.state[p].get("momentum_buffer")) is not None]
        before = [x.clone() for x in (*params, *buffers)]
        loss = super().step(closure)  # type: ignore[no-untyped-call]
        for x, old in zip((*params, *buffers), before, strict=True):
            x.copy_(torch.where(found_inf > 0, old, x))
        return loss  # type: ignore[no-any-return]


def orthogonalise(
    matrices: Tensor, *, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Bring the singular values of every matrix near one, by Newton-Schulz iteration in bfloat16.

    Args:
        matrices: (G, A, B).
        coefficients: Of X, (X X^T) X and (X X^T)^2 X in one step.
        steps: How many.
        eps: Least norm to divide by.
    """
    a, b, c = coefficients
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices.bfloat16() if wide else matrices.bfloat16().mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
