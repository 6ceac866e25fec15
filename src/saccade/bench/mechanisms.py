"""The registry of mechanisms that can be measured: all attentions, and peers.

A mechanism is built for one setting. The result is an `Operation`: a function of q, k, v with its
parameters and its FLOPs by formula. A mechanism that cannot run there raises `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from saccade.bench.shapes import Pass, Shape
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS, AttentionCore, create_core
from saccade.layers.cores import SoftmaxCore, TaylorCore
from saccade.ops import taylor_attention
from saccade.ops.arguments import Backend, check_backend, compute_dtype
from saccade.ops.taylor import Algorithm, num_features
from saccade.registry import Registry

__all__ = ["MECHANISMS", "Mechanism", "Operation", "Setting", "find", "flops_of"]

BACKENDS: tuple[Backend, ...] = ("auto", "torch", "triton")
FEATURE_SEED = 0


@dataclass(frozen=True)
class Setting:
    """Shape, dtype and device of a measurement."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Operation:
    """A mechanism built for one setting.

    Attributes:
        attend: Function of q, k, v that returns the output.
        flops: FLOPs of each pass by formula; a multiply-add counts as 2.
        parameters: Its parameters, by the names that the equation uses.
        numbers: Other numbers that the equation uses.
    """

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    flops: Mapping[Pass, int]
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


Build = Callable[[Setting, Backend], Operation]


@dataclass(frozen=True)
class Mechanism:
    """An entry of the registry.

    Attributes:
        family: Name of the attention whose equation it must reproduce.
        build: Function that makes the operation for a setting and a backend.
        summary: One-line description.
        peer: True if others wrote the implementation. A peer is timed even if its error is too
            large; its row says so.
    """

    family: str
    build: Build
    summary: str
    peer: bool = False


MECHANISMS: Registry[Mechanism] = Registry("mechanism")


def find(spec: str) -> tuple[Mechanism, Backend]:
    """Look up the mechanism and backend of `name` or `name/backend`."""
    name, _, backend = spec.partition("/")
    mechanism = MECHANISMS[name]
    for known in BACKENDS:
        if known == (backend or "auto"):
            return mechanism, known
    raise ConfigError(
        f"the backend of a mechanism must be one of {', '.join(BACKENDS)}, got {spec!r}"
    )


def flops_of(forward: int, *, backward: float) -> dict[Pass, int]:
    """FLOPs of both passes; the backward pass alone takes `backward` times the forward FLOPs."""
    return {"forward": forward, "training": round(forward * (1 + backward))}


def quadratic_flops(shape: Shape) -> dict[Pass, int]:
    """4 N^2 D per head forward; the backward pass has five matrix products instead of two."""
    heads = shape.batch * shape.heads
    return flops_of(4 * heads * shape.tokens**2 * shape.head_dim, backward=2.5)


def efficient_flops(shape: Shape, features: int) -> dict[Pass, int]:
    """4 N F (D+1) per head forward, and twice that backward."""
    heads = shape.batch * shape.heads
    return flops_of(4 * heads * shape.tokens * features * (shape.head_dim + 1), backward=2)


def _taylor(algorithm: Algorithm) -> Build:
    def build(setting: Setting, backend: Backend) -> Operation:
        if algorithm == "direct":
            flops = quadratic_flops(setting.shape)
        else:
            flops = efficient_flops(setting.shape, num_features(setting.shape.head_dim))
        attend = partial(taylor_attention, algorithm=algorithm, backend=backend)
        return Operation(attend, flops)

    return build


def _core(attention: str, algorithm: Algorithm | None = None) -> Build:
    def build(setting: Setting, backend: Backend) -> Operation:
        shape, available = setting.shape, ATTENTIONS[attention].options
        options: dict[str, object] = {}
        if algorithm is not None:
            options["algorithm"] = algorithm
        if "feature_seed" in available:
            options["feature_seed"] = FEATURE_SEED
        if "max_tokens" in available:
            options["max_tokens"] = shape.tokens
        if "backend" in available:
            options["backend"] = backend
        else:
            check_backend(backend, ("auto",))
        core = create_core(attention, shape.heads, shape.head_dim, options=options)
        core.to(setting.device, compute_dtype(setting.dtype))
        numbers = {name: getattr(core, name) for name in core.equation_options}
        tensors = _parameters(core, setting.dtype)
        return Operation(core, _core_flops(core, shape), tensors, numbers)

    return build


def _core_flops(core: AttentionCore, shape: Shape) -> dict[Pass, int]:
    quadratic = isinstance(core, SoftmaxCore) or (
        isinstance(core, TaylorCore) and core.choose(shape.tokens, shape.tokens) == "direct"
    )
    return flops_of(shape.batch * core.flops(shape.tokens), backward=2.5 if quadratic else 2)


@torch.no_grad()
def _parameters(core: AttentionCore, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of the core, rounded to `dtype` in place so that both sides use equal values."""
    tensors = dict(core.named_parameters()) | dict(core.named_buffers())
    floating = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    for tensor in floating.values():
        tensor.copy_(tensor.to(dtype))
    return floating


def _register_ours() -> None:
    for name in ATTENTIONS:
        MECHANISMS.register(name, Mechanism(name, _core(name), ATTENTIONS[name].summary))
    algorithms: tuple[Algorithm, ...] = ("direct", "efficient")
    for algorithm in algorithms:
        order = "quadratic" if algorithm == "direct" else "linear"
        MECHANISMS.register(
            f"taylor-{algorithm}",
            Mechanism("taylor", _taylor(algorithm), f"Taylor attention in {order} time"),
        )
        MECHANISMS.register(
            f"taylorshift-{algorithm}",
            Mechanism(
                "taylorshift",
                _core("taylorshift", algorithm),
                f"TaylorShift in {order} time, normalization and temperature included",
            ),
        )


_register_ours()
