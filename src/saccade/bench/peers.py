"""The peers: torch's fused softmax kernels, unfused formulas, and other packages.

Importing this module adds them to `MECHANISMS`. `taylor_unfused` is the efficient algorithm of
TaylorShift (arXiv:2403.02920) as published: D^2 features of all tokens at once, a column of ones
beside v for the denominator, sums divided by N.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from saccade.bench.mechanisms import (
    FEATURE_SEED,
    MECHANISMS,
    Build,
    Mechanism,
    Operation,
    Setting,
    efficient_flops,
    flops_of,
    quadratic_flops,
)
from saccade.errors import ConfigError
from saccade.layers.performers import default_num_features
from saccade.ops.arguments import Backend, check_backend
from saccade.ops.linear import orthogonal_projection
from saccade.ops.taylor.reference import taylor_attention_reference

__all__ = ["SOFTMAX_KERNELS"]

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
