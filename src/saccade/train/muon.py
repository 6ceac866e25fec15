"""torch's Muon with batched updates.

torch updates the matrices one by one, with about twenty small launches for each, and the device
waits for the host. Here the gradients of a group are one flat tensor and the momenta another, in
the order of the matrix shapes, so that an elementwise operation is one launch. The Newton-Schulz
iteration works on wide matrices. Matrices with the same shorter side are batched, padded with zero
columns, which do not change the products. State, settings and results are torch's, except for the
order of summation. Weights and momenta are unchanged while the optimizer's `found_inf` tensor is 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Muon

__all__ = ["BatchedMuon", "MaskedMuon"]

MAX_PADDING = 2**30  # multiplications by zeros in one product: about what a launch costs a GPU


class BatchedMuon(Muon):
    """Muon for unsharded matrices.

    The momenta of a group are one flat tensor; each `momentum_buffer` is a view of it.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(sorted(params, key=lambda p: tuple(p.shape)), group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        before, momentum = self._momenta(params), group["momentum"]
        grads = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
        after = before.lerp(grads, 1 - momentum)
        update = grads.lerp_(after, momentum) if group["nesterov"] else after
        kept = 1 - group["lr"] * group["weight_decay"]
        if (found_inf := getattr(self, "found_inf", None)) is None:
            before.copy_(after)
        else:
            bad = found_inf.reshape(()) > 0
            torch.where(bad, before, after, out=before)
            update.masked_fill_(bad, 0.0)
            kept = torch.where(bad, 1.0, kept)
        stacks = by_shape(update, params)
        for family in families(stacks):
            orthogonalize_and_scale(family, group)
        torch._foreach_mul_(params, kept)
        torch._foreach_sub_(params, list(chain.from_iterable(stacks)))

    def _momenta(self, params: list[Tensor]) -> Tensor:
        """The flat tensor of the momenta; rebuilt if some are new, loaded or of other matrices."""
        parts = [self.state[p].get("momentum_buffer") for p in params]
        if (row := common_row(parts)) is None:
            old = zip(params, parts, strict=True)
            row = torch.cat([(torch.zeros_like(p) if m is None else m).flatten() for p, m in old])
            new = torch.split(row, [p.numel() for p in params])
            for p, part in zip(params, new, strict=True):
                self.state[p]["momentum_buffer"] = part.view(p.shape)
        return row


class MaskedMuon(Muon):
    """Muon for sharded matrices: torch's step, undone if a gradient was not finite."""

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


def common_row(parts: list[Tensor | None]) -> Tensor | None:
    """The flat tensor that the parts cover completely and in order, as views; None otherwise."""
    row, start = None if parts[0] is None else parts[0]._base, 0
    for part in parts:
        if part is None or part._base is not row or part.storage_offset() != start:
            return None
        start += part.numel()
    return row if row is not None and row.numel() == start else None


def by_shape(row: Tensor, params: list[Tensor]) -> list[Tensor]:
    """Views (G, A, B) of a flat tensor of matrices, sorted by shape."""
    shapes = Counter(p.shape for p in params)
    parts = torch.split(row, [count * shape.numel() for shape, count in shapes.items()])
    return [part.view(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def families(stacks: list[Tensor]) -> list[list[Tensor]]:
    """Group the stacks that go through the iteration together.

    The stacks of a group have the same shorter side. If padding to the longest side would cost more
    than separate launches, they have the same longer side too.
    """
    sides: dict[int, dict[int, list[Tensor]]] = {}
    for stack in stacks:
        short, long = sorted(stack.shape[1:])
        sides.setdefault(short, {}).setdefault(long, []).append(stack)
    found: list[list[Tensor]] = []
    for short, alike in sides.items():
        columns = sum(len(s) * (max(alike) - long) for long in alike for s in alike[long])
        together = columns * short**2 <= MAX_PADDING
        found += [list(chain.from_iterable(alike.values()))] if together else alike.values()
    return found


def orthogonalize_and_scale(stacks: list[Tensor], group: dict[str, Any]) -> None:
    """Replace the momenta of one group of stacks by the updates of their weights, in place."""
    short = min(stacks[0].shape[1:])
    long = max(max(stack.shape[1:]) for stack in stacks)
    shape = sum(map(len, stacks)), short, long
    x = torch.zeros(shape, dtype=torch.bfloat16, device=stacks[0].device)
    for stack, place in zip(stacks, places(x, stacks), strict=True):
        place.copy_(stack)
    x = orthogonalize(
        x, coefficients=group["ns_coefficients"], steps=group["ns_steps"], eps=group["eps"]
    )
    for stack, place in zip(stacks, places(x, stacks), strict=True):
        rows, columns = stack.shape[1:]
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        rate = torch.as_tensor(rate, dtype=stack.dtype, device=stack.device)
        torch.mul(place, rate.reshape(1), out=stack)  # (1,): a 0-d tensor would keep bfloat16


def places(x: Tensor, stacks: list[Tensor]) -> list[Tensor]:
    """Views of a padded stack (sum of G, short, long) with the shapes of the stacks."""
    parts = torch.split(x, [len(stack) for stack in stacks])
    shapes = [stack.shape[1:] for stack in stacks]
    return [
        part[..., :columns] if rows <= columns else part[..., :rows].mT
        for part, (rows, columns) in zip(parts, shapes, strict=True)
    ]


def orthogonalize(
    x: Tensor, *, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Move the singular values of every matrix close to one, by Newton-Schulz iteration.

    Args:
        x: (G, A, B) with A <= B, bfloat16; zero columns stay zero.
        coefficients: Coefficients of X, (X X^T) X and (X X^T)^2 X in one step.
        steps: Number of steps.
        eps: Lower bound of the norm in the first division.
    """
    a, b, c = coefficients
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
