"""Operators of torch with a backward pass, called often.

`torch.library.custom_op` makes the same of a function, but a call of it with gradients takes the
host some 90 us longer, which is more than all launches of a short attention take (docs/log.md).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Operator", "operator"]

_library = torch.library.Library("saccade", "FRAGMENT")  # type: ignore[no-untyped-call]

F = TypeVar("F", bound=Callable[..., Any])
Keep = Callable[[Any, tuple[Any, ...], Any], None]
PullBack = Callable[..., Sequence[Tensor | None]]


class Operator:
    """A function of tensors and numbers that changes none of them, as `saccade::NAME`.

    Attributes:
        function: The function itself.
        overload: What torch calls, `torch.ops.saccade.NAME.default`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self.function = name, function
        schema = torch.library.infer_schema(function, mutates_args=(), op_name=name)
        tags = (torch.Tag.pt2_compliant_tag,)
        _library.define(schema, tags=tags)  # type: ignore[no-untyped-call]
        self._implement(function, "CompositeExplicitAutograd")
        self.overload = getattr(torch.ops.saccade, name).default

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns."""
        return self.overload(*arguments)

    def _implement(self, function: Callable[..., Any], key: str) -> None:
        _library.impl(self._name, function, key)  # type: ignore[no-untyped-call]

    def register_fake(self, fake: F) -> F:
        """Decorate the same without data: shapes, strides and dtypes of what is returned."""
        torch.library.register_fake(f"saccade::{self._name}", fake, lib=_library)
        return fake

    def register_autograd(self, pull_back: PullBack, *, setup_context: Keep) -> None:
        """Tell the gradient, once differentiable.

        Args:
            pull_back: Takes a context and gradients of the outputs; returns those of the inputs.
            setup_context: Takes the context, inputs and outputs; saves what `pull_back` needs.
        """
        overload = self.overload

        class Differentiated(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                with torch._C._AutoDispatchBelowAutograd():
                    outputs = overload(*inputs)
                setup_context(ctx, inputs, outputs)
                return outputs

            @staticmethod
            @once_differentiable
            def backward(ctx: Any, *grads: Tensor | None) -> Any:
                return tuple(pull_back(ctx, *grads))

        def autograd(*inputs: Any) -> Any:
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
                return Differentiated.apply(*inputs)  # type: ignore[no-untyped-call]
            with torch._C._AutoDispatchBelowAutograd():
                return overload(*inputs)

        self._implement(autograd, "Autograd")


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Decorate an annotated function to make it the operator `saccade::NAME`."""
    return lambda function: Operator(name, function)
