"""Compare an operation with its equation in float64 on the same inputs.

The operation runs once on the full problem. Two samples are compared, in all heads, at evenly
spaced queries: the output, and the gradients of a loss over these queries only. The loss needs
Q x N weights in float64 instead of N x N, and its gradient still reaches every key and value.

The allowed error is twice the error of the equation in the same dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from saccade.bench.mechanisms import Operation, Setting
from saccade.layers import ATTENTIONS, Attention

__all__ = ["Accuracy", "Problem"]

FACTOR = 2.0
MAX_QUERIES = 512
WEIGHTS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Maximum number of float64 weights in the check, by device."""

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Accuracy:
    """Relative errors in the Frobenius norm and their bounds, for `out`, `dq`, `dk`, `dv`, ..."""

    errors: Mapping[str, float]
    allowed: Mapping[str, float]

    def faults(self) -> list[str]:
        """A message for each error that exceeds its bound."""
        return [
            f"{name} is off by {error:.2g}, allowed {self.allowed[name]:.2g}"
            for name, error in self.errors.items()
            if not error <= self.allowed[name]
        ]


class Problem:
    """Random q, k, v for one setting, and the exact results of each family for them."""

    def __init__(self, setting: Setting, *, gradients: bool) -> None:
        shape, self.setting, self.gradients = setting.shape, setting, gradients
        size = (shape.batch, shape.heads, shape.tokens, shape.head_dim)
        generator = torch.Generator(setting.device).manual_seed(0)
        self.q, self.k, self.v, self.grad = (
            torch.randn(size, generator=generator, dtype=setting.dtype, device=setting.device)
            for _ in range(4)
        )
        for x in (self.q, self.k, self.v):
            x.requires_grad_(gradients)
        self._samples = torch.tensor(sorted({0, shape.batch - 1}), device=setting.device)
        self._queries = self._spread_queries(len(self._samples) * shape.heads)
        self._truths: dict[str, tuple[Values, dict[str, float]]] = {}

    def check(self, operation: Operation, family: str, *, gradients: bool) -> Accuracy:
        """Run the operation once and compare it with its family's equation."""
        if family not in self._truths:
            entry = ATTENTIONS[family]
            exact = self._evaluate(entry, operation, torch.float64)
            self._truths[family] = exact, self._bounds(entry, operation, exact)
        exact, allowed = self._truths[family]
        errors = _errors(self._run(operation, gradients), exact)
        return Accuracy(errors, {name: allowed[name] for name in errors})

    def inputs(self, *, gradients: bool) -> Values:
        """q, k and v, detached without gradients, because some kernels check `requires_grad`."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        return named if gradients else {name: x.detach() for name, x in named.items()}

    def _spread_queries(self, heads: int) -> Tensor:
        tokens = self.setting.shape.tokens
        weights = WEIGHTS.get(self.setting.device.type, WEIGHTS["cpu"])
        count = max(1, min(tokens, MAX_QUERIES, weights // (tokens * heads)))
        places = sorted({i * (tokens - 1) // max(1, count - 1) for i in range(count)})
        return torch.tensor(places, device=self.setting.device)

    def _pick(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._samples).index_select(2, self._queries)

    def _run(self, operation: Operation, gradients: bool) -> Values:
        """Run the operation on the full problem and select the values to compare."""
        wanted = self.inputs(gradients=gradients)
        wanted |= {name: x for name, x in operation.parameters.items() if x.requires_grad}
        with torch.set_grad_enabled(gradients):
            out = operation.attend(wanted["q"], wanted["k"], wanted["v"])
        values = {"out": self._pick(out.detach())}
        if not bool(out.detach().isfinite().all()):
            values["out"] = torch.full_like(values["out"], torch.nan)
        if not gradients:
            return values
        direction = torch.zeros_like(out)
        places = (self._samples[:, None], slice(None), self._queries[None, :])
        direction[places] = self.grad[places].to(direction.dtype)
        found = torch.autograd.grad(out, list(wanted.values()), direction)
        for name, gradient in zip(wanted, found, strict=True):
            values[f"d{name}"] = self._compared(name, gradient)
        return values

    def _compared(self, name: str, gradient: Tensor) -> Tensor:
        if name == "q":
            return self._pick(gradient)
        return gradient.index_select(0, self._samples) if name in ("k", "v") else gradient

    def _evaluate(self, entry: Attention, operation: Operation, dtype: torch.dtype) -> Values:
        """Evaluate the equation in a dtype on the selected samples and queries.

        An attention of queries and keys of the same tokens gets all queries, of which the selected
        ones are compared.
        """
        whole = entry.self_only
        picked = {
            "q": self.q.index_select(0, self._samples) if whole else self._pick(self.q),
            "k": self.k.index_select(0, self._samples),
            "v": self.v.index_select(0, self._samples),
        }
        leaves = {
            name: x.detach().to(dtype).requires_grad_(self.gradients) for name, x in picked.items()
        }
        own = {
            name: x.detach().to(dtype).requires_grad_(self.gradients and x.requires_grad)
            for name, x in operation.parameters.items()
        }
        parameters = {**operation.numbers, **own}
        out = entry.equation_function(leaves["q"], leaves["k"], leaves["v"], parameters)
        out = out.index_select(2, self._queries) if whole else out
        values = {"out": out.detach()}
        if self.gradients:
            wanted = leaves | {name: x for name, x in own.items() if x.requires_grad}
            direction = self._pick(self.grad).to(dtype)
            gradients = torch.autograd.grad(out, list(wanted.values()), direction)
            values |= {f"d{name}": x for name, x in zip(wanted, gradients, strict=True)}
            if whole:
                values["dq"] = values["dq"].index_select(2, self._queries)
        return values

    def _bounds(self, entry: Attention, operation: Operation, exact: Values) -> dict[str, float]:
        """Twice the error of the equation in this dtype, and at least half an epsilon.

        For float64, and if the equation overflows in this dtype, the error in float32 is used,
        scaled by the ratio of the epsilons. The error of a tensor with n entries is an estimate
        with relative uncertainty 1/sqrt(n), so the bound is wider for small tensors.
        """
        dtype, epsilons = self.setting.dtype, 1.0
        plain = _errors(self._evaluate(entry, operation, dtype), exact)
        if dtype == torch.float64 or not all(map(isfinite, plain.values())):
            plain = _errors(self._evaluate(entry, operation, torch.float32), exact)
            epsilons = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        least = torch.finfo(dtype).eps / 2
        return {
            name: max(least, FACTOR * (1 + 3 / sqrt(exact[name].numel())) * epsilons * error)
            for name, error in plain.items()
        }


def _errors(values: Values, exact: Values) -> dict[str, float]:
    errors = {}
    for name, x in values.items():
        difference = float((x.double() - exact[name]).norm() / exact[name].norm())
        errors[name] = difference if isfinite(difference) else inf
    return errors
