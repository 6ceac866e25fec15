"""Torch operators with a backward pass and little overhead per call.

`torch.library.custom_op` does the same, but a call with gradients takes about 90 us longer on the
host, more than all launches of a short attention (docs/log.md).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["Operator", "operator"]

_libraries: dict[str, torch.library.Library] = {}

F = TypeVar("F", bound=Callable[..., Any])
Inputs = tuple[Any, ...]
SetupContext = Callable[[Any, Inputs, Any], None]
PullBack = Callable[..., Sequence[Tensor | None]]


class Operator:
    """A function of tensors and numbers without side effects, registered as `saccade::NAME`.

    Attributes:
        function: The function itself.
        overload: The operator that torch calls, `torch.ops.saccade.NAME.default`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self.function = name, function
        self._library = _new_library(name)
        schema = torch.library.infer_schema(function, mutates_args=(), op_name=name)
        tags = (torch.Tag.pt2_compliant_tag,)
        self._library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
        self._implement(function, "CompositeExplicitAutograd")
        self.overload = getattr(torch.ops.saccade, name).default
        self._implement(self._with_gradient, "Autograd")
        self._setup_context: SetupContext = lambda ctx, inputs, outputs: None
        self._pull_back: PullBack = self._refuse
        self._when_differentiated: Callable[[Inputs], Inputs] = lambda inputs: inputs
        self._node = self._make_node()

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns."""
        return self.overload(*arguments)

    def within_backward(self, inputs: Inputs) -> Any:
        """Call the function in a backward pass, whose result rarely needs a gradient.

        If it does, the operator raises; otherwise this saves a dispatch.
        """
        asked = torch.is_grad_enabled() or forward_ad._current_level >= 0
        if asked or torch.compiler.is_compiling():
            return self.overload(*inputs)
        return self._below_autograd(inputs)

    def register_fake(self, fake: F) -> F:
        """Register the fake implementation: shapes, strides and dtypes of the results."""
        torch.library.register_fake(f"saccade::{self._name}", fake, lib=self._library)
        return fake

    def register_autograd(
        self,
        pull_back: PullBack,
        *,
        setup_context: SetupContext,
        inputs: Callable[[Inputs], Inputs] | None = None,
    ) -> None:
        """Register the gradient; without one, differentiating raises.

        Args:
            pull_back: Takes a context and gradients of the outputs; returns those of the inputs.
            setup_context: Takes the context, inputs and outputs; saves what `pull_back` needs.
            inputs: Replaces the inputs if a gradient may be needed.
        """
        self._pull_back, self._setup_context = pull_back, setup_context
        if inputs is not None:
            self._when_differentiated = inputs

    def _implement(self, function: Callable[..., Any], key: str) -> None:
        self._library.impl(self._name, function, key)  # type: ignore[no-untyped-call]

    def _below_autograd(self, inputs: Inputs) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return self.overload(*inputs)

    def _with_gradient(self, *inputs: Any) -> Any:
        backward = torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)
        if backward or forward_ad._current_level >= 0:  # torch refuses tangents by itself
            return self._node.apply(*inputs)  # type: ignore[no-untyped-call]
        return self._below_autograd(inputs)

    def _make_node(self) -> type[torch.autograd.Function]:
        class Node(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:  # a setup_context of its own takes 45 us
                outputs = self._below_autograd(self._when_differentiated(inputs))
                self._setup_context(ctx, inputs, outputs)
                return outputs

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> Any:
                return tuple(self._pull_back(ctx, *grads))

        return Node

    def _refuse(self, *_unused: Any) -> Any:
        raise RuntimeError(
            f"saccade::{self._name} has no gradient: attention can be differentiated once"
        )


def _new_library(name: str) -> torch.library.Library:
    """A library for one operator, which is replaced if its module is loaded again."""
    if name in _libraries:
        _libraries.pop(name)._destroy()  # type: ignore[no-untyped-call]
    library = torch.library.Library("saccade", "FRAGMENT")  # type: ignore[no-untyped-call]
    _libraries[name] = library
    return library


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Register an annotated function as the operator `saccade::NAME`."""
    return lambda function: Operator(name, function)
