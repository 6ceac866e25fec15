"""More published forward passes, restated as in `published`: the ViTs, and the Performer study."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from published import (
    Weights,
    gelu,
    gelu_tanh,
    join_heads,
    layer_norm,
    linear,
    linear_shapes,
    norm_shapes,
    renamed,
    sinusoids,
    softmax,
    split_heads,
    with_class_token,
)
from torch import Tensor

# ViT from scratch


def vit_from_scratch_shapes(
    width: int, depth: int, hidden: int, patch: int, tokens: int
) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {
        "embedding.patch_embeddings.projection.weight": (width, 3, patch, patch),
        "embedding.patch_embeddings.projection.bias": (width,),
        "embedding.cls_token": (1, 1, width),
        "embedding.position_embeddings": (1, tokens + 1, width),
    }
    for index in range(depth):
        block = f"encoder.blocks.{index}"
        shapes |= norm_shapes(f"{block}.layernorm_1", width)
        shapes |= linear_shapes(f"{block}.attention.qkv_projection", width, 3 * width)
        shapes |= linear_shapes(f"{block}.attention.output_projection", width, width)
        shapes |= norm_shapes(f"{block}.layernorm_2", width)
        shapes |= linear_shapes(f"{block}.mlp.dense_1", width, hidden)
        shapes |= linear_shapes(f"{block}.mlp.dense_2", hidden, width)
    return shapes | linear_shapes("classifier", width, 10)


def vit_from_scratch(
    w: Weights,
    x: Tensor,
    heads: int,
    depth: int,
    *,
    hidden_dropout_prob: float = 0.0,
    attention_probs_dropout_prob: float = 0.0,
) -> Tensor:
    """No norm after the last block; dropout after the MLP, not inside it."""

    def drop(x: Tensor) -> Tensor:
        return F.dropout(x, hidden_dropout_prob)

    name = "embedding.patch_embeddings.projection"
    kernel = w[f"{name}.weight"]
    x = F.conv2d(x, kernel, w[f"{name}.bias"], stride=kernel.shape[-1])
    x = with_class_token(w, "embedding.cls_token", x.flatten(2).mT)
    x = drop(x + w["embedding.position_embeddings"])
    for index in range(depth):
        block = f"encoder.blocks.{index}"
        mixed = linear(
            w, f"{block}.attention.qkv_projection", layer_norm(w, f"{block}.layernorm_1", x, 1e-5)
        )
        q, k, v = (split_heads(part, heads) for part in mixed.chunk(3, dim=-1))
        probs = softmax(q @ k.mT / math.sqrt(q.shape[-1]))
        out = join_heads(F.dropout(probs, attention_probs_dropout_prob) @ v)
        x = x + drop(linear(w, f"{block}.attention.output_projection", out))
        hidden = linear(w, f"{block}.mlp.dense_1", layer_norm(w, f"{block}.layernorm_2", x, 1e-5))
        x = x + drop(linear(w, f"{block}.mlp.dense_2", gelu_tanh(hidden)))
    return linear(w, "classifier", x[:, 0])


def to_saccade_vit_from_scratch(w: Weights) -> Weights:
    names = {
        "embedding.patch_embeddings.projection": "patch_embed.proj",
        "embedding.cls_token": "cls_token",
        "embedding.position_embeddings": "pos_embed",
        "encoder.blocks": "blocks",
        "layernorm_1": "norm1",
        "layernorm_2": "norm2",
        "attention.qkv_projection": "attn.qkv",
        "attention.output_projection": "attn.proj",
        "mlp.dense_1": "mlp.fc1",
        "mlp.dense_2": "mlp.fc2",
        "classifier": "head",
    }
    return renamed(w, names)


# VisTransformer's LightViT


def light_vit_shapes(width: int, depth: int, patch: int) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {"special_token": (1, 1, width)}
    shapes |= linear_shapes("linear_map.projection.0", patch**2, width)
    for index in range(depth):
        block = f"encoder.{index}"
        shapes |= norm_shapes(f"{block}.norm1", width) | norm_shapes(f"{block}.norm2", width)
        for part in ("queries", "keys", "values", "projection"):
            shapes |= linear_shapes(f"{block}.mhsa.{part}", width, width)
        shapes |= linear_shapes(f"{block}.mlp.0", width, 4 * width)
        shapes |= linear_shapes(f"{block}.mlp.2", 4 * width, width)
    return shapes | linear_shapes("classifier", width, 10)


def light_vit(
    w: Weights, x: Tensor, heads: int, depth: int, *, patch: int, scale: Literal["width", "head"]
) -> Tensor:
    """As the tutorial's text has it, which divides scores by the root of the whole width."""
    batch, _, height, width = x.shape
    patches = [
        x[:, :, row : row + patch, column : column + patch].reshape(batch, -1)
        for row in range(0, height, patch)
        for column in range(0, width, patch)
    ]
    x = linear(w, "linear_map.projection.0", torch.stack(patches, dim=1))
    x = with_class_token(w, "special_token", x)
    x = x + sinusoids(x.shape[1], x.shape[2])
    for index in range(depth):
        block = f"encoder.{index}"
        y = layer_norm(w, f"{block}.norm1", x, 1e-5)
        q, k, v = (
            split_heads(linear(w, f"{block}.mhsa.{part}", y), heads)
            for part in ("queries", "keys", "values")
        )
        divisor = x.shape[-1] if scale == "width" else q.shape[-1]
        out = join_heads(softmax(q @ k.mT / math.sqrt(divisor)) @ v)
        x = x + linear(w, f"{block}.mhsa.projection", out)
        hidden = gelu(linear(w, f"{block}.mlp.0", layer_norm(w, f"{block}.norm2", x, 1e-5)))
        x = x + linear(w, f"{block}.mlp.2", hidden)
    return linear(w, "classifier", x[:, 0])


def to_saccade_light_vit(w: Weights) -> Weights:
    names = {"special_token": "cls_token", "linear_map.projection.0": "patch_embed.proj"}
    names |= {"encoder": "blocks", "mhsa.projection": "attn.proj", "classifier": "head"}
    names |= {"mlp.0": "mlp.fc1", "mlp.2": "mlp.fc2"}
    parts = {key: value for key, value in w.items() if ".queries." in key}
    for key in parts:
        thirds = (w[key.replace("queries", part)] for part in ("queries", "keys", "values"))
        w = w | {key.replace("mhsa.queries", "attn.qkv"): torch.cat(list(thirds))}
    joined = (".queries.", ".keys.", ".values.")
    return renamed({k: v for k, v in w.items() if not any(part in k for part in joined)}, names)


# Efficient Transformers on CIFAR-10


def study_shapes(width: int, depth: int, features: int, heads: int) -> dict[str, tuple]:
    """Of its convolutions and its Performer layers, for images of 8x8 pixels."""
    shapes: dict[str, tuple] = linear_shapes("embedding.1", 3 * 8 * 8, width)
    for index in range(depth):
        layer = f"performer_layers.{index}"
        for part in ("to_q", "to_k", "to_v"):
            shapes |= linear_shapes(f"{layer}.{part}", width, width, bias=False)
        shapes |= linear_shapes(f"{layer}.to_out", width, width)
        shapes |= norm_shapes(f"{layer}.layer_norm1", width)
        shapes |= norm_shapes(f"{layer}.layer_norm2", width)
        shapes[f"{layer}.projection_matrix"] = (features, width // heads)
    return shapes | norm_shapes("classifier.0", width) | linear_shapes("classifier.1", width, 10)


def study_features(kernel: str, z: Tensor) -> Tensor:
    """phi of z = W x / sqrt(D)."""
    if kernel == "relu":
        return z.clamp(min=0) + 1e-6
    if kernel == "exp":
        return (z - z.max(dim=-1, keepdim=True).values).exp()
    return gelu(z) if kernel == "gelu" else torch.where(z > 0, z, z.exp() - 1)


def study_attention(q: Tensor, k: Tensor, v: Tensor, projection: Tensor, kernel: str) -> Tensor:
    """phi(q) (phi(k)^T v) / (phi(q) sum phi(k) + 1e-6)."""
    phi_q, phi_k = (
        study_features(kernel, x / math.sqrt(x.shape[-1]) @ projection.T) for x in (q, k)
    )
    total = phi_q @ phi_k.sum(-2)[..., None] + 1e-6
    return phi_q @ (phi_k.mT @ v) / total


def study_layers(
    w: Weights,
    x: Tensor,
    heads: int,
    depth: int,
    kernel: str,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor, str], Tensor] = study_attention,
) -> Tensor:
    """Norm, attention, residual, norm; no MLP. The classifier reads the first token."""
    for index in range(depth):
        layer = f"performer_layers.{index}"
        y = layer_norm(w, f"{layer}.layer_norm1", x, 1e-5)
        q, k, v = (
            split_heads(linear(w, f"{layer}.{part}", y), heads) for part in ("to_q", "to_k", "to_v")
        )
        out = join_heads(attend(q, k, v, w[f"{layer}.projection_matrix"], kernel))
        x = layer_norm(w, f"{layer}.layer_norm2", x + linear(w, f"{layer}.to_out", out), 1e-5)
    return linear(w, "classifier.1", layer_norm(w, "classifier.0", x[:, 0], 1e-5))


def study_performer(w: Weights, images: Tensor, heads: int, depth: int, kernel: str) -> Tensor:
    """One token: all features of the image, flattened. Its convolutions are left out here."""
    x = linear(w, "embedding.1", images.flatten(1)).clamp(min=0)
    return study_layers(w, x[:, None], heads, depth, kernel)
