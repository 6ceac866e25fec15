"""Every mechanism as a pair: the fast path and the equation it must reproduce.

Both take (q, k, v, key_mask, *parameters), so that one test can hold any mechanism to its
reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from saccade.layers import ATTENTIONS, Attention, AttentionCore, create_core
from saccade.layers.taylorshift import TaylorShiftCore
from saccade.ops import linear as maps
from saccade.ops import linear_attention, softmax_attention, taylor_attention
from saccade.ops.linear import reference as equations
from saccade.ops.linear.projection import orthogonal_projection
from saccade.ops.softmax.reference import softmax_attention_reference
from saccade.ops.taylor.reference import taylor_attention_reference

FEATURES = 24


SMALL: dict[str, Any] = {
    "feature_seed": 0,
    "max_tokens": 80,
    "rank": 5,
    "num_landmarks": 6,
    "num_agents": 6,
    "num_buckets": 6,
    "chunk_size": 4,
    "rounds": 2,
    "window_tokens": 4,
}
"""Options of cores that keep parameters few, for the attentions that have them."""


@dataclass(frozen=True)
class Mechanism:
    fast: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    parameters: Callable[[int, int], list[Tensor]] = lambda heads, dim: []
    entry: Attention = ATTENTIONS["softmax"]  # what its rows, queries and keys are like


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _taylor(
    algorithm: str,
    coefficients: tuple[float, float, float] = (0.5, 1.0, 1.0),
    center_keys: bool = False,
) -> Mechanism:
    options = {"coefficients": coefficients, "center_keys": center_keys}

    def fast(q, k, v, key_mask):
        return taylor_attention(q, k, v, algorithm=algorithm, key_mask=key_mask, **options)

    def reference(q, k, v, key_mask):
        return taylor_attention_reference(q, k, v, scale=_scale(q), key_mask=key_mask, **options)

    return Mechanism(fast, reference)


def _taylorshift(algorithm: str) -> Mechanism:
    """The core itself, with its temperature as an input: normalization is differentiated too."""

    def fast(q, k, v, key_mask, temperature):
        core = TaylorShiftCore(q.shape[1], q.shape[3], algorithm=algorithm)
        inputs, masks = (q, k, v), {"key_mask": key_mask}
        return torch.func.functional_call(core, {"temperature": temperature}, inputs, masks)

    def reference(q, k, v, key_mask, temperature):
        query, key = (x / (x**2).sum(dim=-1, keepdim=True).sqrt() for x in (q, k))
        out = taylor_attention_reference(query * temperature, key, v, scale=1.0, key_mask=key_mask)
        mask = torch.ones_like(k[:, 0, :, 0]) if key_mask is None else key_mask.to(k.dtype)
        return out * (mask.sum(dim=-1) / q.shape[-1]).sqrt()[:, None, None, None]

    return Mechanism(
        fast, reference, lambda heads, dim: [torch.linspace(0.5, 3.0, heads).view(heads, 1, 1)]
    )


def _projection(heads: int, dim: int) -> list[Tensor]:
    return [orthogonal_projection(FEATURES, dim, seed=3)]


def _favor() -> Mechanism:
    def fast(q, k, v, key_mask, w):
        phi_q = maps.favor_softmax(q, w, is_query=True, eps=0.0)
        phi_k = maps.favor_softmax(k, w, is_query=False, eps=0.0, key_mask=key_mask)
        return linear_attention(phi_q, phi_k, v, eps=0.0, key_mask=key_mask)

    def reference(q, k, v, key_mask, w):
        phi_q, phi_k = (equations.favor_softmax_reference(x, w, scale=_scale(q)) for x in (q, k))
        return equations.linear_attention_reference(phi_q, phi_k, v, eps=0.0, key_mask=key_mask)

    return Mechanism(fast, reference, _projection)


def _random_features(feature_map, equation, **options) -> Mechanism:
    def fast(q, k, v, key_mask, w):
        phi_q, phi_k = (feature_map(x, w, **options) for x in (q, k))
        return linear_attention(phi_q, phi_k, v, key_mask=key_mask)

    def reference(q, k, v, key_mask, w):
        phi_q, phi_k = (equation(x, w, scale=_scale(q), **options) for x in (q, k))
        return equations.linear_attention_reference(phi_q, phi_k, v, key_mask=key_mask)

    return Mechanism(fast, reference, _projection)


def _ftheta_mlp() -> Mechanism:
    def fast(q, k, v, key_mask, *weights):
        phi_q, phi_k = (maps.ftheta_mlp(x, *weights, eps=1e-6) for x in (q, k))
        return linear_attention(phi_q, phi_k, v, key_mask=key_mask)

    def reference(q, k, v, key_mask, *weights):
        phi_q, phi_k = (
            equations.ftheta_mlp_reference(x, *weights, scale=_scale(q), eps=1e-6) for x in (q, k)
        )
        return equations.linear_attention_reference(phi_q, phi_k, v, key_mask=key_mask)

    def parameters(heads, dim):
        w2 = orthogonal_projection(FEATURES, 32, seed=5) / 6
        b1, b2 = torch.linspace(-0.1, 0.1, 32), torch.linspace(-0.5, 0.5, FEATURES)
        return [orthogonal_projection(32, dim, seed=4), b1, w2, b2]

    return Mechanism(fast, reference, parameters)


def _ftheta_mix() -> Mechanism:
    options = {"eps": 1e-6, "clamp": 10.0}

    def fast(q, k, v, key_mask, *weights):
        phi_q, phi_k = (maps.ftheta_mix(x, *weights, **options) for x in (q, k))
        return linear_attention(phi_q, phi_k, v, key_mask=key_mask)

    def reference(q, k, v, key_mask, *weights):
        phi_q, phi_k = (
            equations.ftheta_mix_reference(x, *weights, scale=_scale(q), **options) for x in (q, k)
        )
        return equations.linear_attention_reference(phi_q, phi_k, v, key_mask=key_mask)

    def parameters(heads, dim):
        mu = torch.linspace(0.2, 0.8, heads).view(heads, 1, 1)
        return [orthogonal_projection(FEATURES, dim, seed=6), mu, 1 + mu]

    return Mechanism(fast, reference, parameters)


def _core(name: str) -> Mechanism:
    """The core of a registered attention, and the equation of its entry."""

    @cache  # transforms of torch.func refuse random numbers, which some cores are built from
    def make(heads: int, dim: int) -> AttentionCore:
        return create_core(name, heads, dim, options=small_options(name))

    def tensors(core: AttentionCore) -> dict[str, Tensor]:
        named = {**dict(core.named_parameters()), **dict(core.named_buffers())}
        fixed = core.without_gradient
        return {
            key: x.detach()
            for key, x in named.items()
            if x.is_floating_point() and key not in fixed
        }

    def fast(q, k, v, key_mask, *parameters):
        core = make(q.shape[1], q.shape[3])
        own = dict(zip(tensors(core), parameters, strict=True))
        return torch.func.functional_call(core, own, (q, k, v), {"key_mask": key_mask})

    def reference(q, k, v, key_mask, *parameters):
        core = make(q.shape[1], q.shape[3])
        own = dict(zip(tensors(core), parameters, strict=True))
        own |= {key: core.get_buffer(key).to(q.dtype) for key in core.without_gradient}
        own |= {key: getattr(core, key) for key in core.equation_options}
        return ATTENTIONS[name].equation_function(q, k, v, own, key_mask)

    def parameters(heads: int, dim: int) -> list[Tensor]:
        return list(tensors(make(heads, dim)).values())

    return Mechanism(fast, reference, parameters, ATTENTIONS[name])


def small_options(name: str) -> dict[str, Any]:
    """The options of `SMALL` that an attention has."""
    return {key: value for key, value in SMALL.items() if key in ATTENTIONS[name].options}


MECHANISMS = {
    "softmax": Mechanism(
        lambda q, k, v, m: softmax_attention(q, k, v, key_mask=m),
        lambda q, k, v, m: softmax_attention_reference(q, k, v, scale=_scale(q), key_mask=m),
    ),
    "taylor-direct": _taylor("direct"),
    "taylor-efficient": _taylor("efficient"),
    "taylor-direct-abc": _taylor("direct", (0.3, -0.7, 1.2)),
    "taylor-efficient-abc": _taylor("efficient", (0.3, -0.7, 1.2)),
    "taylor-direct-centered": _taylor("direct", center_keys=True),
    "taylor-efficient-centered": _taylor("efficient", center_keys=True),
    "taylorshift-direct": _taylorshift("direct"),
    "taylorshift-efficient": _taylorshift("efficient"),
    "favor": _favor(),
    "relu": _random_features(maps.relu, equations.relu_reference, eps=1e-3),
    "exp": _random_features(maps.exp, equations.exp_reference, eps=1e-6, clamp=10.0),
    "gelu": _random_features(maps.gelu, equations.gelu_reference, eps=1e-3),
    "elu": _random_features(maps.elu, equations.elu_reference, eps=1e-6),
    "ftheta-mlp": _ftheta_mlp(),
    "ftheta-mix": _ftheta_mix(),
}
"""The functions behind the attentions, and those attentions that have no function here."""

HELD_BY_FUNCTION = {
    *("softmax", "taylor", "taylorshift", "performer", "performer_ftheta"),
    *(f"performer_{name}" for name in ("relu", "exp", "gelu", "elu")),
}
MECHANISMS |= {name: _core(name) for name in ATTENTIONS if name not in HELD_BY_FUNCTION}


def make_inputs(
    *, batch=2, heads=3, queries=65, keys=None, dim=16, width=None, masked=False, seed=0
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Random q, k, v in float64 and, if asked for, a mask that leaves each sample some keys."""
    generator = torch.Generator().manual_seed(seed)
    keys, width = keys or queries, width or dim
    q = torch.randn(batch, heads, queries, dim, generator=generator, dtype=torch.float64)
    k = torch.randn(batch, heads, keys, dim, generator=generator, dtype=torch.float64)
    v = torch.randn(batch, heads, keys, width, generator=generator, dtype=torch.float64)
    if not masked:
        return q, k, v, None
    mask = torch.rand(batch, keys, generator=generator) > 0.3
    mask[:, 0] = True
    return q, k, v, mask


def fitted(mechanism: Mechanism, shape: dict[str, Any]) -> dict[str, Any]:
    """The shape, with as many keys as queries if they must be of the same tokens."""
    return {**shape, "keys": shape.get("queries", 65)} if mechanism.entry.self_only else shape


def draw(mechanism: Mechanism, seed: int = 0, **shape) -> list[Tensor | None]:
    """All inputs of a mechanism, its parameters included, in float64."""
    shape = fitted(mechanism, shape)
    q, k, v, mask = make_inputs(seed=seed, **shape)
    parameters = mechanism.parameters(q.shape[1], q.shape[3])
    return [q, k, v, mask, *(x.double() for x in parameters)]


def with_gradients(function: Callable[..., Tensor], inputs, dtype) -> list[Tensor]:
    """The output and the gradient of every floating input, in the given dtype."""
    leaves = [
        x.to(dtype).detach().requires_grad_() if x is not None and x.is_floating_point() else x
        for x in inputs
    ]
    out = function(*leaves)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    wanted = [x for x in leaves if x is not None and x.is_floating_point()]
    return [out, *torch.autograd.grad(out, wanted, direction.to(dtype))]


def assert_as_good_as_plain(fast, reference, make, dtype, draws=12) -> None:
    """Hold a fast path to the float64 equation: at most twice the error of the plain equation.

    The plain equation is the reference evaluated by torch in the same dtype. Where that says
    nothing (float64 has nothing more exact beside it, float16 can overflow) a path may lose what
    the plain equation loses in float32, counted in epsilons.
    Errors are taken over several draws: one draw of a small gradient can be exact by luck.

    Args:
        fast: The path under test.
        reference: The equation.
        make: seed -> the inputs of both, in float64.
        dtype: What the fast path is run in.
        draws: How many inputs to draw.
    """
    actual, size = _errors(fast, reference, make, dtype, draws)
    plain, plain_size = _errors(reference, reference, make, dtype, draws)
    epsilons = 1.0
    if dtype == torch.float64 or not plain.isfinite().all():
        plain, plain_size = _errors(reference, reference, make, torch.float32, draws)
        epsilons = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    actual, allowed = (actual / size).sqrt(), 2 * epsilons * (plain / plain_size).sqrt()
    assert (actual <= allowed).all(), f"output, gradients: {actual} allowed: {allowed}"


def _errors(function, reference, make, dtype, draws) -> Tensor:
    """Squared error and squared size of output and gradients, summed over the draws."""
    sums = 0
    for seed in range(draws):
        inputs = [_round(x, dtype) for x in make(seed)]
        results = with_gradients(function, inputs, dtype)
        exact = with_gradients(reference, inputs, torch.float64)
        assert all(x.dtype == dtype for x in results)
        pairs = [(x.detach().double(), e.detach()) for x, e in zip(results, exact, strict=True)]
        squares = [((x - e).square().sum(), e.square().sum()) for x, e in pairs]
        sums = sums + torch.tensor(squares, dtype=torch.float64).T
    return sums


def _round(x, dtype):
    return x if x is None or not x.is_floating_point() else x.to(dtype)
