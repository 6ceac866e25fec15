"""The registry of mechanisms that can be measured: all attentions, and peers.

A mechanism is built for one setting. The result is an `Operation`: a function of q, k, v with its
parameters and its FLOPs by formula. A mechanism that cannot run there raises `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.bench.shapes import Pass, Shape
from saccade.errors import ConfigError
from saccade.layers import ATTENTIONS, AttentionCore, create_core
from saccade.layers.cores import SoftmaxCore, TaylorCore
from saccade.layers.performers import default_num_features
from saccade.ops import taylor_attention
from saccade.ops.arguments import Backend, check_backend, compute_dtype
from saccade.ops.linear import orthogonal_projection
from saccade.ops.taylor import Algorithm, num_features
from saccade.ops.taylor.reference import taylor_attention_reference
from saccade.registry import Registry

__all__ = ["MECHANISMS", "SOFTMAX_KERNELS", "Mechanism", "Operation", "Setting", "find", "flops_of"]

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
        flops: FLOPs of each pass by formula; a multiply-add counts as 2.
        parameters: Its parameters, by the names that the equation uses.
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


SOFTMAX_KERNELS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def taylor_formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The equation with N x N weights in memory."""
    return taylor_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5)


def taylor_unfused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The published linear-time algorithm with N x D^2 features in memory."""
    tokens, dim = q.shape[-2:]
    q, k = q * dim**-0.25, k * dim**-0.25
    values = torch.cat([torch.ones_like(v[..., :1]), v], dim=-1) / tokens
    mixed = _squares(q) @ (_squares(k).mT @ values) / 2
    mixed = mixed + q @ (k.mT @ values) + values.sum(dim=-2, keepdim=True)
    return mixed[..., 1:] / mixed[..., :1]


def _squares(x: Tensor) -> Tensor:
    """x x^T of every token, flattened: (..., D) -> (..., D^2)."""
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)


def _sdpa_with(kernel: SDPBackend | None) -> Build:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernel is None:
            return F.scaled_dot_product_attention(q, k, v)
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v)

    def build(setting: Setting, backend: Backend) -> Operation:
        check_backend(backend, ("auto",))
        return Operation(attend, quadratic_flops(setting.shape))

    return build


def _plain(attend: Attend, *, linear: bool, compiled: bool = False) -> Build:
    def build(setting: Setting, backend: Backend) -> Operation:
        check_backend(backend, ("auto", "torch"))
        dim = setting.shape.head_dim
        flops = (
            efficient_flops(setting.shape, dim * dim + dim + 1)
            if linear
            else quadratic_flops(setting.shape)
        )
        return Operation(_compile(attend) if compiled else attend, flops)

    return build


def _compile(attend: Attend) -> Attend:
    # Without a reset, the eighth shape would exceed torch's limit of compiled versions.
    torch.compiler.reset()
    return torch.compile(attend, fullgraph=True, dynamic=False)


def _flex(setting: Setting, backend: Backend) -> Operation:
    """Taylor attention in FlexAttention, whose weights are the exp of a modified score: log w."""
    from torch.nn.attention.flex_attention import flex_attention

    check_backend(backend, ("auto",))

    def log_weight(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.log(1 + score * (1 + score / 2))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = flex_attention(q, k, v, score_mod=log_weight)
        assert isinstance(out, Tensor)
        return out

    return Operation(_compile(attend), quadratic_flops(setting.shape))


def _performer_pytorch(setting: Setting, backend: Backend) -> Operation:
    """FAVOR+ of the package performer-pytorch, with the projection of our `performer`."""
    try:
        FastAttention = import_module("performer_pytorch").FastAttention
    except ImportError as error:
        raise ConfigError("performer-pytorch is not installed") from error
    check_backend(backend, ("auto",))
    shape = setting.shape
    features = default_num_features(shape.head_dim)
    projection = orthogonal_projection(features, shape.head_dim, seed=FEATURE_SEED)
    projection = projection.to(setting.dtype).float().to(setting.device)
    module = FastAttention(shape.head_dim, nb_features=features).to(setting.device)
    module.projection_matrix.copy_(projection)
    products = 4 * shape.head_dim + (4 * shape.head_dim + 2)
    forward = shape.batch * shape.heads * shape.tokens * features * products
    return Operation(module, flops_of(forward, backward=2), {"projection": projection})


def _register(name: str, family: str, build: Build, summary: str) -> None:
    MECHANISMS.register(name, Mechanism(family, build, summary, peer=True))


_register("sdpa", "softmax", _sdpa_with(None), "torch's softmax, the kernel torch picks")
for _name, _kernel in SOFTMAX_KERNELS.items():
    _register(_name, "softmax", _sdpa_with(_kernel), f"torch's softmax, {_name[5:]} kernel")
for _name, _attend, _linear, _summary in (
    ("taylor-formula", taylor_formula, False, "Taylor's equation, N x N weights"),
    ("taylor-unfused", taylor_unfused, True, "published TaylorShift, N x D^2 features"),
):
    _register(_name, "taylor", _plain(_attend, linear=_linear), _summary)
    _compiled = _plain(_attend, linear=_linear, compiled=True)
    _register(f"{_name}-compiled", "taylor", _compiled, f"{_summary}, torch.compile")
_register("taylor-flex", "taylor", _flex, "FlexAttention with the score log(1 + s + s^2/2)")
_register("performer-pytorch", "performer", _performer_pytorch, "performer-pytorch's FAVOR+")
