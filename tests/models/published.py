"""The forward passes that the sources of the variants publish, restated literally.

Each function is the equations of one source on a dictionary of its weights, under the source's own
names, in the dtype of the weights. Nothing of saccade is used. `to_saccade_*` give the weights the
names that they have here.
"""

from __future__ import annotations

import math
import re
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Weights:
    """Weights far from where training starts, so that every one of them matters."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        fan_in = max(1, math.prod(shape[1:]))
        drawn[name] = values.exp() if name.endswith("running_var") else values / math.sqrt(fan_in)
    return drawn


def wave(name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers by a formula, so that a figure holds for them anywhere."""
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(places * 0.7 + zlib.crc32(name.encode()) % 1000).view(shape)


def waves(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """As `random_weights`, by the formula."""
    drawn = {}
    for name, shape in shapes.items():
        values = wave(name, shape)
        fan_in = max(1, math.prod(shape[1:]))
        drawn[name] = values.exp() if name.endswith("running_var") else values / math.sqrt(fan_in)
    return drawn


def linear_shapes(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, tuple]:
    shapes = {f"{name}.weight": (outputs, inputs)}
    return shapes | ({f"{name}.bias": (outputs,)} if bias else {})


def norm_shapes(name: str, width: int) -> dict[str, tuple]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def batch_norm_shapes(name: str, width: int) -> dict[str, tuple]:
    return {
        f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")
    }


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    out = x @ w[f"{name}.weight"].T
    return out + w[f"{name}.bias"] if f"{name}.bias" in w else out


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return centered / (variance + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def batch_norm(w: Weights, name: str, x: Tensor, training: bool) -> Tensor:
    mean, variance = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    if training:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    mean, variance, weight, bias = (
        values[:, None, None] for values in (mean, variance, w[f"{name}.weight"], w[f"{name}.bias"])
    )
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def conv(w: Weights, name: str, x: Tensor, stride: int = 1) -> Tensor:
    return F.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), stride=stride, padding=1)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sinusoids(length: int, width: int) -> Tensor:
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for pair in range(width // 2):
            angle = position / 10000 ** (2 * pair / width)
            table[position, 2 * pair] = math.sin(angle)
            table[position, 2 * pair + 1] = math.cos(angle)
    return table


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H D) as (B, H, N, D), head by head."""
    return torch.stack(x.chunk(heads, dim=-1), dim=1)


def join_heads(x: Tensor) -> Tensor:
    return torch.cat(x.unbind(1), dim=-1)


def with_class_token(w: Weights, name: str, x: Tensor) -> Tensor:
    return torch.cat([w[name].expand(len(x), 1, -1), x], dim=1)


def softmax(scores: Tensor) -> Tensor:
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


# TaylorIR


def taylorir_shapes(width: int, depth: int, hidden: int, classes: int) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {"cls_token": (1, 1, width)}
    for place, before, after in ((0, 3, width // 2), (3, width // 2, width)):
        shapes |= {f"stem.{place}.weight": (after, before, 3, 3), f"stem.{place}.bias": (after,)}
        shapes |= batch_norm_shapes(f"stem.{place + 1}", after)
    for index in range(depth):
        block = f"transformer_blocks.{index}"
        shapes |= norm_shapes(f"{block}.norm1", width) | norm_shapes(f"{block}.norm2", width)
        shapes |= linear_shapes(f"{block}.attn.qkv", width, 3 * width)
        shapes |= linear_shapes(f"{block}.attn.proj", width, width)
        shapes |= linear_shapes(f"{block}.ffn.0", width, hidden)
        shapes |= linear_shapes(f"{block}.ffn.3", hidden, width)
    shapes |= norm_shapes("norm", width) | linear_shapes("classifier.0", width, hidden)
    return shapes | linear_shapes("classifier.3", hidden, classes)


def taylorir(
    w: Weights, x: Tensor, heads: int, depth: int, *, dropout: float = 0.1, training: bool = False
) -> Tensor:
    """Stem, class token, sinusoids, pre-norm blocks, norm of the class token, hidden GELU head."""

    def drop(x: Tensor) -> Tensor:
        return F.dropout(x, dropout, training)

    for place in (0, 3):
        x = gelu(batch_norm(w, f"stem.{place + 1}", conv(w, f"stem.{place}", x), training))
    x = with_class_token(w, "cls_token", x.flatten(2).permute(0, 2, 1))
    x = drop(x + sinusoids(x.shape[1], x.shape[2]))
    for index in range(depth):
        block = f"transformer_blocks.{index}"
        q, k, v = (
            split_heads(part, heads)
            for part in linear(
                w, f"{block}.attn.qkv", layer_norm(w, f"{block}.norm1", x, 1e-5)
            ).chunk(3, dim=-1)
        )
        scores = q / math.sqrt(q.shape[-1]) @ k.mT
        weights = 1 + scores + scores**2 / 2
        weights = drop(weights / weights.sum(-1, keepdim=True))
        x = x + drop(linear(w, f"{block}.attn.proj", join_heads(weights @ v)))
        hidden = linear(w, f"{block}.ffn.0", layer_norm(w, f"{block}.norm2", x, 1e-5))
        x = x + drop(linear(w, f"{block}.ffn.3", drop(gelu(hidden))))
    x = layer_norm(w, "norm", x[:, 0], 1e-5)
    return linear(w, "classifier.3", drop(gelu(linear(w, "classifier.0", x))))


def to_saccade_taylorir(w: Weights) -> Weights:
    names = {"stem": "patch_embed.proj", "transformer_blocks": "blocks"}
    names |= {"ffn.0": "mlp.fc1", "ffn.3": "mlp.fc2"}
    names |= {"classifier.0": "head.fc1", "classifier.3": "head.fc2"}
    return renamed(w, names)


# TaylorShift


def taylorshift_shapes(
    width: int, depth: int, heads: int, hidden: int, classes: int
) -> dict[str, tuple]:
    shapes: dict[str, tuple] = {"cls_token": (1, 1, width)}
    for index in range(depth):
        block = f"blocks.{index}"
        shapes |= norm_shapes(f"{block}.norm1", width) | norm_shapes(f"{block}.norm2", width)
        shapes |= linear_shapes(f"{block}.attn.qkv", width, 3 * width)
        shapes |= linear_shapes(f"{block}.attn.proj", width, width)
        shapes[f"{block}.attn.temperature"] = (1, heads, 1, 1)
        shapes |= linear_shapes(f"{block}.mlp.fc1", width, hidden)
        shapes |= linear_shapes(f"{block}.mlp.fc2", hidden, width)
    return shapes | norm_shapes("norm", width) | linear_shapes("head", width, classes)


def box(x: Tensor, y: Tensor) -> Tensor:
    """All products of a number of x and one of y, (..., D^2)."""
    return (x[..., :, None] * y[..., None, :]).flatten(-2)


def taylorshift_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    *,
    efficient: bool,
    output_normalized: bool,
    abc: tuple[float, float, float] = (0.5, 1.0, 1.0),
) -> Tensor:
    """Both forms; q is scaled by C^-1/2 before, and a temperature means unit rows."""
    (a, b, c), (tokens, width) = abc, q.shape[-2:]
    if temperature is not None:
        q = q / q.norm(dim=-1, keepdim=True).clamp(min=1e-12) * temperature
        k = k / k.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    if not efficient:
        scores = q @ k.mT
        weights = a * scores**2 + b * scores + c
        out = weights / weights.sum(-1, keepdim=True) @ v
        return out * math.sqrt(tokens / width) if output_normalized else out
    alpha = width**0.25 if temperature is not None else 1.0
    q, k = alpha * q, alpha * k
    ones = torch.ones_like(v[..., :1]) * (math.sqrt(width / tokens) if output_normalized else 1)
    v = torch.cat([ones, v], dim=-1) / tokens
    y = a * box(q, q) @ (box(k, k).mT @ v)
    y = y + b * alpha**2 * q @ (k.mT @ v) + c * alpha**4 * v.sum(-2, keepdim=True)
    return y[..., 1:] / y[..., :1]


def taylorshift_layer(
    w: Weights, name: str, x: Tensor, heads: int, *, efficient: bool, output_normalized: bool
) -> Tensor:
    width = x.shape[-1]
    q, k, v = (split_heads(part, heads) for part in linear(w, f"{name}.qkv", x).chunk(3, dim=-1))
    temperature = w.get(f"{name}.temperature")
    out = taylorshift_attention(
        q * width**-0.5,
        k,
        v,
        temperature,
        efficient=efficient,
        output_normalized=output_normalized,
    )
    return linear(w, f"{name}.proj", join_heads(out))


def taylorshift_trunk(
    w: Weights, x: Tensor, heads: int, depth: int, *, efficient: bool = False
) -> Tensor:
    """Class token in front of what has its positions already, pre-norm blocks, norm, head."""
    x = with_class_token(w, "cls_token", x)
    for index in range(depth):
        block = f"blocks.{index}"
        x = x + taylorshift_layer(
            w,
            f"{block}.attn",
            layer_norm(w, f"{block}.norm1", x, 1e-6),
            heads,
            efficient=efficient,
            output_normalized=True,
        )
        hidden = gelu(linear(w, f"{block}.mlp.fc1", layer_norm(w, f"{block}.norm2", x, 1e-6)))
        x = x + linear(w, f"{block}.mlp.fc2", hidden)
    return linear(w, "head", layer_norm(w, "norm", x, 1e-6)[:, 0])


def taylorshift_conv_tokens(w: Weights, x: Tensor) -> Tensor:
    """Three Conv1d without bias, each with GroupNorm of one group and GELU."""
    x = x.mT
    for place in (0, 3, 6):
        x = F.conv1d(x, w[f"patch_embed.proj.{place}.weight"], padding=1)
        centered = x - x.mean((1, 2), keepdim=True)
        x = centered / (centered.square().mean((1, 2), keepdim=True) + 1e-5).sqrt()
        weight, bias = (w[f"patch_embed.proj.{place + 1}.{part}"] for part in ("weight", "bias"))
        x = gelu(x * weight[:, None] + bias[:, None])
    return x.mT


def taylorshift_transformer(
    w: Weights, x: Tensor, heads: int, depth: int, *, efficient: bool = False
) -> Tensor:
    """Token i has the sinusoid of position i, the class token none."""
    is_linear = "patch_embed.weight" in w
    x = linear(w, "patch_embed", x) if is_linear else taylorshift_conv_tokens(w, x)
    x = x + sinusoids(x.shape[1], x.shape[2])
    return taylorshift_trunk(w, x, heads, depth, efficient=efficient)


def taylorshift_vit(
    w: Weights, x: Tensor, heads: int, depth: int, *, patch: int, efficient: bool = False
) -> Tensor:
    """Patches have learned positions, the class token none."""
    if "patch_embed.proj.weight" in w:
        x = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=patch)
    else:
        last = 2 * round(math.log2(patch)) - 2
        for place in range(0, last + 1, 2):
            name = f"patch_embed.proj.{place}"
            x = batch_norm(w, f"{name}.1", conv(w, f"{name}.0", x, stride=2), training=False)
            x = gelu(x) if place < last else x
    x = x.flatten(2).mT + w["pos_embed"]
    return taylorshift_trunk(w, x, heads, depth, efficient=efficient)


def to_saccade_taylorshift(w: Weights) -> Weights:
    """Of the vision transformer; `to_saccade_sequences` goes on from there."""
    w = renamed(w, {"attn.temperature": "attn.core.temperature"})
    return {k: v[0] if k.endswith("core.temperature") else v for k, v in w.items()}


def to_saccade_sequences(w: Weights) -> Weights:
    names = {"patch_embed.weight": "token_embed.proj.weight"}
    names |= {"patch_embed.bias": "token_embed.proj.bias"}
    for index in range(3):
        names[f"patch_embed.proj.{3 * index}"] = f"token_embed.convs.{index}"
        names[f"patch_embed.proj.{3 * index + 1}"] = f"token_embed.norms.{index}"
    return to_saccade_taylorshift(renamed(w, names))


def renamed(w: Weights, names: dict[str, str]) -> Weights:
    """Keys with whole dotted parts replaced."""
    found = {}
    for key, value in w.items():
        for old, new in names.items():
            key = re.sub(rf"(^|\.){re.escape(old)}(?=\.|$)", rf"\g<1>{new}", key)
        found[key] = value
    return found
