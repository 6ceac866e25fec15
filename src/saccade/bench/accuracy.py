"""How exact an operation is, against float64 of the same inputs, and how exact it has to be.

The operation runs once on the full problem. Two samples are compared, all heads, at evenly spaced
queries: the output there, and the gradients of a loss that only these queries take part in. Such
a loss needs Q x N weights in float64 instead of N x N, and still reaches every key and value.

An error may be twice that of the plain formula in the same dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from saccade.bench.equations import EQUATIONS, Equation
from saccade.bench.mechanisms import Operation, Setting

__all__ = ["Accuracy", "Problem"]

FACTOR = 2.0
MOST_QUERIES = 512
WEIGHTS = {"cpu": 1 << 22, "cuda": 1 << 25}
"""How many float64 weights the check may form, by device."""

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Accuracy:
    """Relative errors (Frobenius) and their bounds, by name: `out`, `dq`, `dk`, `dv`, ..."""

    errors: Mapping[str, float]
    allowed: Mapping[str, float]

    def faults(self) -> list[str]:
        """What is out of bounds, in words."""
        return [
            f"{name} is off by {error:.2g}, allowed {self.allowed[name]:.2g}"
            for name, error in self.errors.items()
            if not error <= self.allowed[name]
        ]


class Problem:
    """Random q, k, v for one setting, and the truth about every family on them.

    Args:
        setting: Shape, dtype and device.
        gradients: Whether gradients can be asked for.
    """

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
            equation, parameters = EQUATIONS[family], operation.parameters
            exact = self._evaluate(equation, parameters, torch.float64)
            self._truths[family] = exact, self._bounds(equation, parameters, exact)
        exact, allowed = self._truths[family]
        errors = _errors(self._run(operation, gradients), exact)
        return Accuracy(errors, {name: allowed[name] for name in errors})

    def inputs(self, *, gradients: bool) -> Values:
        """q, k and v; detached where no gradients are taken, since some kernels look at that."""
        named = {"q": self.q, "k": self.k, "v": self.v}
        return named if gradients else {name: x.detach() for name, x in named.items()}

    def _spread_queries(self, heads: int) -> Tensor:
        tokens = self.setting.shape.tokens
        weights = WEIGHTS.get(self.setting.device.type, WEIGHTS["cpu"])
        count = max(1, min(tokens, MOST_QUERIES, weights // (tokens * heads)))
        places = sorted({i * (tokens - 1) // max(1, count - 1) for i in range(count)})
        return torch.tensor(places, device=self.setting.device)

    def _pick(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._samples).index_select(2, self._queries)

    def _run(self, operation: Operation, gradients: bool) -> Values:
        """The operation on the full problem, cut down to what is compared."""
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

    def _evaluate(
        self, equation: Equation, parameters: Mapping[str, Tensor], dtype: torch.dtype
    ) -> Values:
        """The equation on the chosen samples and queries, in a dtype."""
        picked = {
            "q": self._pick(self.q),
            "k": self.k.index_select(0, self._samples),
            "v": self.v.index_select(0, self._samples),
        }
        leaves = {
            name: x.detach().to(dtype).requires_grad_(self.gradients) for name, x in picked.items()
        }
        own = {
            name: x.detach().to(dtype).requires_grad_(self.gradients and x.requires_grad)
            for name, x in parameters.items()
        }
        out = equation(leaves["q"], leaves["k"], leaves["v"], own)
        values = {"out": out.detach()}
        if self.gradients:
            wanted = leaves | {name: x for name, x in own.items() if x.requires_grad}
            direction = self._pick(self.grad).to(dtype)
            gradients = torch.autograd.grad(out, list(wanted.values()), direction)
            values |= {f"d{name}": x for name, x in zip(wanted, gradients, strict=True)}
        return values

    def _bounds(
        self, equation: Equation, parameters: Mapping[str, Tensor], exact: Values
    ) -> dict[str, float]:
        """Twice the plain formula's error, and no less than rounding the result may cost.

        Where the plain formula says nothing (float64 has nothing more exact beside it, float16
        can overflow) it is taken in float32 and counted in epsilons. An error over n numbers is
        itself known to 1/sqrt(n): the bound of a tensor with few entries is wider.
        """
        dtype, epsilons = self.setting.dtype, 1.0
        plain = _errors(self._evaluate(equation, parameters, dtype), exact)
        if dtype == torch.float64 or not all(map(isfinite, plain.values())):
            plain = _errors(self._evaluate(equation, parameters, torch.float32), exact)
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
