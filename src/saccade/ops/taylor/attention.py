"""`taylor_attention`: one function for both algorithms.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = c + b s_ij + a s_ij^2,   s_ij = scale q_i.k_j

(arXiv:2403.02920.) `direct` takes 4 N^2 D FLOPs per head, `efficient` 4 N F (D+1) with
F = D(D+1)/2 + D + 1; both need memory linear in N and agree to rounding. `center_keys` replaces
k_j by k_j - mean_j k_j.
"""

from math import inf
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops.arguments import (
    Backend,
    check_key_mask,
    check_qk,
    check_qkv,
    compute_dtype,
    in_full_precision,
    is_traced,
    known_size,
    resolve_scale,
    select_queries,
)
from saccade.ops.backends import fused_obstacle, is_plain, is_transformed, takes_fused
from saccade.ops.centering import centered_keys
from saccade.ops.compilation import constant_when_compiled
from saccade.ops.taylor.choice import choose, crossover
from saccade.ops.taylor.composed import direct_composed, efficient_composed
from saccade.ops.taylor.direct import direct
from saccade.ops.taylor.efficient import efficient

__all__ = [
    "Algorithm",
    "check_coefficients",
    "output_factor",
    "packed_taylor_attention",
    "taylor_attention",
    "taylor_weights",
    "taylorshift_attention",
    "unit_rows",
]

Algorithm = Literal["auto", "direct", "efficient"]
Coefficients = tuple[float, float, float]

EXPONENTIAL: Coefficients = (0.5, 1.0, 1.0)


def taylor_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    coefficients: Coefficients = EXPONENTIAL,
    key_mask: Tensor | None = None,
    center_keys: bool = False,
    algorithm: Algorithm = "auto",
    backend: Backend = "auto",
) -> Tensor:
    """Attend with second-order Taylor weights.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        scale: Factor of the scores s = scale q.k; 1/sqrt(D) by default.
        coefficients: (a, b, c) of c + b s + a s^2, with a > 0 and c >= b^2 / 4a.
        key_mask: (B, S), True = attend. A sample that masks every key gets 0.
        center_keys: Subtract the mean of the attended keys from the keys. This does not change
            softmax, and brings these weights closer to softmax.
        algorithm: `direct`, `efficient`, or `auto`, which follows `explain_choice`.
        backend: `torch`, `triton` (fused), or `auto`, the best there is.

    Returns:
        (B, H, N, E) in the dtype of q; sums are float32 (float64 for float64). For bfloat16 inputs,
        the fused direct form first adds up to 16 weights in bfloat16.
    """
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    check_coefficients(coefficients)
    k = centered_keys(k, key_mask) if center_keys else k
    return _attend(
        q, k, v, None, resolve_scale(scale, q.shape[-1]), coefficients, key_mask, algorithm, backend
    )


def taylorshift_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor,
    *,
    coefficients: Coefficients = EXPONENTIAL,
    key_mask: Tensor | None = None,
    center_keys: bool = False,
    normalize_output: bool = False,
    algorithm: Algorithm = "auto",
    backend: Backend = "auto",
) -> Tensor:
    """Taylor attention of rows of length one: s = temperature q.k / (|q| |k|).

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        temperature: (H,), a factor of the scores for each head.
        coefficients: As in `taylor_attention`.
        key_mask: As in `taylor_attention`.
        center_keys: As in `taylor_attention`, before keys are divided by their length.
        normalize_output: Multiply by sqrt(N / D), N the number of keys attended to.
        algorithm: As in `taylor_attention`.
        backend: As in `taylor_attention`.

    Returns:
        (B, H, N, E) in the dtype of q.
    """
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    check_coefficients(coefficients)
    if temperature.shape != (q.shape[1],):
        raise ConfigError(
            f"temperature must have shape ({q.shape[1]},), one per head, got "
            f"{tuple(temperature.shape)}"
        )
    k = centered_keys(k, key_mask) if center_keys else k
    return _attend(
        q, k, v, temperature, 1.0, coefficients, key_mask, algorithm, backend, normalize_output
    )


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    scale: float,
    coefficients: Coefficients,
    key_mask: Tensor | None,
    algorithm: Algorithm,
    backend: Backend,
    normalize_output: bool = False,
) -> Tensor:
    """Choose the backend and the algorithm, and attend."""
    fused = _takes_fused(backend, q, v)
    algorithm = _choose_algorithm(algorithm, q, k, fused=fused)
    if fused:
        from saccade.ops.taylor import triton

        return triton.fused(
            q,
            k,
            v,
            scale=scale,
            coefficients=coefficients,
            key_mask=key_mask,
            temperature=temperature,
            algorithm=algorithm,
            normalize_output=normalize_output,
        )
    if is_plain() or is_transformed():
        run = direct_composed if algorithm == "direct" else efficient_composed
    else:
        run = direct if algorithm == "direct" else efficient
    if temperature is None:
        return run(q, k, v, scale=scale, coefficients=coefficients, key_mask=key_mask)
    q_unit, k_unit = unit_rows(q, k, temperature)
    wide = v.to(q_unit.dtype)
    out = run(q_unit, k_unit, wide, scale=scale, coefficients=coefficients, key_mask=key_mask)
    if normalize_output:
        out = out * output_factor(k, key_mask, out.dtype)
    return out.to(v.dtype)


def _choose_algorithm(
    algorithm: Algorithm, q: Tensor, k: Tensor, *, fused: bool
) -> Literal["direct", "efficient"]:
    """The requested algorithm; for `auto` the faster one."""
    if algorithm not in get_args(Algorithm):
        raise UnknownNameError("algorithm", algorithm, get_args(Algorithm))
    if algorithm != "auto":
        return algorithm
    threshold, _ = crossover(
        known_size(q.shape[3]),
        backend="triton" if fused else "torch",
        device_name=_gpu_name(q.device.index) if q.is_cuda else q.device.type,
        dtype=str(q.dtype).removeprefix("torch."),
        training=torch.is_grad_enabled() and q.requires_grad,
    )
    return choose(known_size(q.shape[2]), known_size(k.shape[2]), threshold)


def packed_taylor_attention(
    qkv: Tensor,
    temperature: Tensor | None,
    *,
    coefficients: Coefficients = EXPONENTIAL,
    normalize_output: bool = False,
    algorithm: Algorithm = "auto",
    backend: Backend = "auto",
) -> Tensor | None:
    """Attend to q, k and v in one tensor, as the projection returns them, if a kernel supports it.

    Args:
        qkv: (B, N, 3, H, D), checked by the caller.
        temperature: (H,) as in `taylorshift_attention`; None as in `taylor_attention`.
        coefficients: As in `taylor_attention`.
        normalize_output: As in `taylorshift_attention`.
        algorithm: As in `taylor_attention`.
        backend: As in `taylor_attention`.

    Returns:
        (B, N, H, D) in the dtype of qkv; None if no kernel supports the call.
    """
    if qkv.dtype != torch.bfloat16:
        return None
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    if not _takes_fused(backend, q, v):
        return None
    from saccade.ops.taylor import triton

    short = triton.is_short(q.shape[2], q.shape[3])
    if not short or _choose_algorithm(algorithm, q, k, fused=True) != "direct":
        return None
    return triton.fused_packed(
        qkv,
        scale=q.shape[3] ** -0.5 if temperature is None else 1.0,
        coefficients=coefficients,
        temperature=temperature,
        normalize_output=normalize_output,
    )


def output_factor(k: Tensor, key_mask: Tensor | None, dtype: torch.dtype) -> float | Tensor:
    """sqrt(N / D), N the number of attended keys: a number, or (B, 1, 1, 1) with a mask."""
    if key_mask is None and is_traced():  # N is a tensor, and stays open
        return (torch.as_tensor(k.shape[2], dtype=dtype, device=k.device) / k.shape[3]).sqrt()
    if key_mask is None and is_plain():  # a number would hold N fast in an exported graph
        return (k.new_ones(k.shape[2], dtype=dtype).sum() / k.shape[3]).sqrt()
    if key_mask is None:
        factor: float = (k.shape[2] / k.shape[3]) ** 0.5  # math.sqrt would hold N fast in a graph
        return factor
    return (key_mask.sum(dim=-1).to(dtype) / k.shape[3]).sqrt()[:, None, None, None]


def unit_rows(q: Tensor, k: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """temperature q/|q| and k/|k| in the dtype of sums; rounding them would lose accuracy."""
    dtype = compute_dtype(q.dtype)
    factor = temperature.to(dtype).view(-1, 1, 1)
    return F.normalize(q.to(dtype), dim=-1) * factor, F.normalize(k.to(dtype), dim=-1)


def _takes_fused(backend: Backend, q: Tensor, v: Tensor) -> bool:
    """`auto` uses the kernels for bfloat16 on a GPU, and for float32 if TF32 is allowed.

    Exact float32 products do not use the matrix units, so torch is as fast. float16 would use TF32
    products, whose errors on a GPU have not been tested.
    """
    preferred = q.is_cuda and q.dtype == torch.bfloat16
    if q.is_cuda and q.dtype == torch.float32:
        preferred = torch.backends.cuda.matmul.allow_tf32
    if backend == "auto" and not preferred:
        return False  # without asking what else is in the way
    return takes_fused(backend, fused_obstacle(v, q.shape[-1]), preferred=preferred)


@constant_when_compiled
def _gpu_name(index: int) -> str:
    return torch.cuda.get_device_name(index)


@in_full_precision
def taylor_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    coefficients: Coefficients = EXPONENTIAL,
    key_mask: Tensor | None = None,
    center_keys: bool = False,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, S), rows summing to one."""
    check_qk(q, k)
    check_key_mask(key_mask, k)
    a, b, c = check_coefficients(coefficients)
    dtype = compute_dtype(q.dtype)
    k = centered_keys(k, key_mask) if center_keys else k
    chosen = select_queries(q, queries).to(dtype) * resolve_scale(scale, q.shape[-1])
    keys = k.to(dtype)
    if key_mask is not None:
        keys = keys.masked_fill(~key_mask[:, None, :, None], 0)
    s = chosen @ keys.mT
    w = c + s * (b + a * s)
    if key_mask is not None:
        w = w.masked_fill(~key_mask[:, None, None, :], 0)
    total = w.sum(dim=-1, keepdim=True)
    return (w / total.masked_fill(total == 0, 1)).to(q.dtype)


def check_coefficients(coefficients: Coefficients) -> Coefficients:
    """Return the coefficients; raise if their polynomial can be negative."""
    if len(coefficients) != 3 or not all(abs(x) < inf for x in coefficients):
        raise ConfigError(
            f"coefficients must be three finite numbers (a, b, c), got {coefficients!r}"
        )
    a, b, c = coefficients
    if a <= 0 or c < b * b / (4 * a):
        raise ConfigError(
            "coefficients must have a > 0 and c >= b^2 / 4a, so that c + b s + a s^2 is never "
            f"negative, got {coefficients!r}"
        )
    return coefficients
