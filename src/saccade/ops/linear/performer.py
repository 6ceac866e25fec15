"""`performer_attention`: a random feature map and linear attention in one function.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = phi(q_i).phi(k_j) + eps

with phi of `feature_maps.py` over a fixed projection W (M, D) (Performer, arXiv:2009.14794).
Cost: 2 (N + S) M (D + E + 1) FLOPs per head. The fused kernels never store the features
(B, H, N, M); besides q, k, v and the output they need M E numbers per head.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from saccade.errors import ConfigError, UnknownNameError
from saccade.ops.arguments import (
    Backend,
    check_key_mask,
    check_qkv,
    in_full_precision,
    resolve_scale,
)
from saccade.ops.backends import fused_obstacle, takes_fused
from saccade.ops.linear import feature_maps
from saccade.ops.linear.attention import check_eps, linear_attention

__all__ = ["FeatureMap", "Precision", "performer_attention", "random_features"]

FeatureMap = Literal["favor_softmax", "relu", "exp", "gelu", "elu"]
Precision = Literal["ieee", "tf32x3", "tf32"]

_FEATURE_EPS = {"favor_softmax": 1e-6, "relu": 1e-3, "exp": 1e-6, "gelu": 1e-3, "elu": 1e-6}


@in_full_precision
def performer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor,
    *,
    feature_map: FeatureMap = "favor_softmax",
    scale: float | None = None,
    feature_eps: float | None = None,
    eps: float = 0.0,
    key_mask: Tensor | None = None,
    precision: Precision = "ieee",
    backend: Backend = "auto",
) -> Tensor:
    """Attend with random features of q and k.

    Args:
        q: Queries (B, H, N, D), in any strides.
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        projection: W (M, D), see `orthogonal_projection`. The fused kernels give it no gradient.
        feature_map: A random feature map of this folder.
        scale: Factor of the scores; 1/sqrt(D) by default.
        feature_eps: Added to every feature; by default what the feature map adds.
        eps: Added to every weight before rows are normalized; the features are positive without.
        key_mask: (B, S), True = attend. A sample that masks every key gets 0.
        precision: How the fused kernels multiply float32 inputs: exactly, or with three or one TF32
            products. It does not affect half-precision inputs. The torch path follows
            `torch.set_float32_matmul_precision`.
        backend: `torch`, `triton` (fused), or `auto`, the fastest.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    check_eps(eps)
    _check_features(feature_map, precision, projection, q)
    scale = resolve_scale(scale, q.shape[-1])
    if scale < 0:
        raise ConfigError(f"scale must be at least 0 for feature maps, got {scale!r}")
    feature_eps = _FEATURE_EPS[feature_map] if feature_eps is None else feature_eps
    obstacle = fused_obstacle(v, q.shape[-1])
    if projection.requires_grad and torch.is_grad_enabled():
        obstacle = "projection requires a gradient, and it treats it as fixed"
    # Timed on an H200 (docs/log.md); exact float32 products do not use the matrix units.
    preferred = v.is_cuda and v.dtype in (torch.bfloat16, torch.float16)
    if not takes_fused(backend, obstacle, preferred=preferred):
        phi_q, phi_k = (
            random_features(
                x,
                projection,
                feature_map,
                is_query=is_query,
                scale=scale,
                eps=feature_eps,
                key_mask=None if is_query else key_mask,
            )
            for x, is_query in ((q, True), (k, False))
        )
        return linear_attention(phi_q, phi_k, v, eps=eps, key_mask=key_mask, backend="torch")
    from saccade.ops.linear.triton import fused

    shift = feature_maps.GELU_SHIFT if feature_map == "gelu" else 0.0
    return fused(
        q,
        k,
        v,
        projection,
        feature_map=feature_map,
        scale=scale,
        constant=shift + feature_eps,
        eps=eps * projection.shape[0],
        key_mask=key_mask,
        precision=precision,
    )


def _check_features(
    feature_map: FeatureMap, precision: Precision, projection: Tensor, q: Tensor
) -> None:
    if feature_map not in get_args(FeatureMap):
        raise UnknownNameError("feature map", feature_map, get_args(FeatureMap))
    if precision not in get_args(Precision):
        raise UnknownNameError("precision", precision, get_args(Precision))
    if projection.dim() != 2 or projection.shape[1] != q.shape[-1]:
        raise ConfigError(
            f"projection must have shape (M, {q.shape[-1]}), got {tuple(projection.shape)}"
        )
    if projection.device != q.device:
        raise ConfigError(f"projection must be on {q.device}, as q, got {projection.device}")


def random_features(
    x: Tensor,
    projection: Tensor,
    feature_map: FeatureMap,
    *,
    is_query: bool,
    scale: float | None = None,
    eps: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The features of queries or keys by a map's name: (B, H, N, D) -> (B, H, N, M).

    Args:
        x: Queries or keys.
        projection: W (M, D).
        feature_map: A random feature map of this folder.
        is_query: True if x are queries; FAVOR+ treats queries and keys differently.
        scale: Factor of the scores; 1/sqrt(D) by default.
        eps: Added to every feature; by default what the feature map adds.
        key_mask: (B, N) for keys; FAVOR+ takes its maximum over the keys attended to.
    """
    eps = _FEATURE_EPS[feature_map] if eps is None else eps
    if feature_map == "favor_softmax":
        return feature_maps.favor_softmax(
            x, projection, is_query=is_query, scale=scale, eps=eps, key_mask=key_mask
        )
    maps = {
        "relu": feature_maps.relu,
        "exp": feature_maps.exp,
        "gelu": feature_maps.gelu,
        "elu": feature_maps.elu,
    }
    return maps[feature_map](x, projection, scale=scale, eps=eps)
