"""Rebuild a ViT of timm or transformers as a `VisionTransformer` of saccade.

The configuration is read from the model or its `config.json`, and the weights are renamed. A model
with a part that saccade does not have is refused. The logits of a rebuilt timm model are compared
with timm's own.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.convert.source import Source
from saccade.errors import ConfigError, shorten
from saccade.integrations.checkpoints import load_checkpoint, read_checkpoint
from saccade.integrations.layouts import from_layout
from saccade.integrations.swap import RELATIVE, has_relative_bias
from saccade.io import read_json
from saccade.models import VisionTransformer, ViTConfig

__all__ = ["from_timm", "from_transformers"]

BIASED_TYPES = ("beit", "data2vec-vision", "swin", "swinv2", "swin2sr")
MAX_REASON = 200  # characters
MAX_DIFFERENCE = 1e-3  # of rebuilt and original logits, relative to their size


def from_timm(name: str, architecture: str, weights: Path, record: dict[str, Any]) -> Source:
    """Rebuild timm's `VisionTransformer`.

    Raises:
        ConfigError: timm is not installed, or the model has parts that saccade does not have.
    """
    if find_spec("timm") is None:
        raise ConfigError(f"{name!r} needs timm: pip install 'saccade[timm]'")
    import timm

    if not timm.is_model(architecture):
        raise ConfigError(f"SOURCE must name a model of timm, got {architecture!r}")
    state = read_checkpoint(weights)
    head = state.get("head.weight")
    classes = 1000 if head is None else len(head)
    options: Any = record.get("model_args") or {}
    original: Any
    try:
        original = timm.create_model(architecture, **{**options, "num_classes": classes}).eval()
        config = _timm_config(original, architecture)
        if head is None:
            raise ConfigError(
                f"weights {str(weights)!r} must have a classifier, got no 'head.weight'"
            )
        original.load_state_dict(state)
    except RuntimeError as error:
        first = shorten(str(error).splitlines()[-1].strip(), MAX_REASON)
        raise ConfigError(f"weights {str(weights)!r} must fit {architecture!r}: {first}") from None
    pretrained = {**original.pretrained_cfg, **record.get("pretrained_cfg", {})}
    names = pretrained.get("label_names")
    config = replace(
        config,
        mean=tuple(pretrained["mean"]),
        std=tuple(pretrained["std"]),
        class_names=tuple(names) if names and len(names) == classes else None,
    )
    model = _filled(config, original.state_dict(), architecture)
    _compare(model, original, architecture)
    return Source(name, "timm", model)


def _timm_config(model: Any, architecture: str) -> ViTConfig:
    """The configuration of timm's model; raises if a part of it has no counterpart."""
    if any(has_relative_bias(module) for module in model.modules()):
        raise ConfigError(f"SOURCE must be a plain ViT, got {architecture!r} with {RELATIVE}")
    if type(model).__name__ != "VisionTransformer":
        raise ConfigError(
            f"SOURCE must be a plain ViT to become a run, got {architecture!r}, a "
            f"{type(model).__name__}; swap_attention changes other ViTs in place"
        )
    block = model.blocks[0]
    act = {"GELU": "gelu", "GELUTanh": "gelu_tanh"}.get(type(block.mlp.act).__name__)
    unsupported = {
        "register tokens": model.num_reg_tokens > 0,
        "a norm before the blocks": not isinstance(model.norm_pre, nn.Identity),
        "norms of q and k": not isinstance(block.attn.q_norm, nn.Identity),
        "no bias of the output": block.attn.proj.bias is None,
        "no position embedding": model.pos_embed is None,
        "another block": type(block).__name__ != "Block",
        f"the activation {type(block.mlp.act).__name__}": act is None,
        f"the pooling {model.global_pool!r}": model.global_pool not in ("token", "avg"),
    }
    if found := [what for what, is_there in unsupported.items() if is_there]:
        raise ConfigError(
            f"SOURCE must be a plain ViT to become a run, got {architecture!r} with "
            f"{', '.join(found)}; swap_attention changes it in place"
        )
    has_scale = not isinstance(block.ls1, nn.Identity)
    side, chans = model.patch_embed.patch_size, model.patch_embed.proj.in_channels
    assert act is not None
    return ViTConfig(
        num_classes=model.num_classes,
        img_size=tuple(model.patch_embed.img_size),
        patch_size=side[0],
        in_chans=chans,
        embed_dim=model.embed_dim,
        depth=len(model.blocks),
        num_heads=block.attn.num_heads,
        head_dim=block.attn.head_dim,
        mlp_hidden_dim=block.mlp.fc1.out_features,
        act=act,  # type: ignore[arg-type]
        qkv_bias=block.attn.qkv.bias is not None,
        init_values=float(block.ls1.gamma.mean()) if has_scale else None,
        class_token=model.cls_token is not None,
        no_embed_class=model.no_embed_class,
        global_pool=model.global_pool,
        norm_eps=block.norm1.eps,
        final_norm=not (
            isinstance(model.norm, nn.Identity) and isinstance(model.fc_norm, nn.Identity)
        ),
        fc_norm=not isinstance(model.fc_norm, nn.Identity),
        mean=(0.5,) * chans,
        std=(0.5,) * chans,
    )


def from_transformers(name: str, record: dict[str, Any], weights: Path) -> Source:
    """Rebuild `ViTForImageClassification` from its `config.json` and weights; needs no library.

    Raises:
        ConfigError: The model is of another type, or has parts that saccade does not have.
    """
    kind = record["model_type"]
    if kind in BIASED_TYPES:
        raise ConfigError(f"SOURCE must be a plain ViT, got model_type {kind!r} with {RELATIVE}")
    if kind != "vit":
        raise ConfigError(
            f"SOURCE must be of model_type 'vit' to become a run, got {kind!r}; swap_attention "
            "changes other ViTs of transformers in place"
        )
    state = read_checkpoint(weights)
    head = state.get("classifier.weight")
    if head is None:
        raise ConfigError(
            f"weights {str(weights)!r} must have a classifier, got no 'classifier.weight'"
        )
    acts = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    act = record.get("hidden_act", "gelu")
    if act not in acts:
        raise ConfigError(f"hidden_act must be one of {', '.join(acts)}, got {act!r}")
    labels = record.get("id2label") or {}
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    given = all(found.startswith("LABEL_") for found in names)
    chans = record.get("num_channels", 3)
    mean, std = _normalization(weights.parent, chans)
    config = ViTConfig(
        num_classes=len(head),
        class_names=names if len(names) == len(head) and not given else None,
        img_size=record.get("image_size", 224),
        patch_size=record.get("patch_size", 16),
        in_chans=chans,
        embed_dim=record.get("hidden_size", 768),
        depth=record.get("num_hidden_layers", 12),
        num_heads=record.get("num_attention_heads", 12),
        mlp_hidden_dim=record.get("intermediate_size", 3072),
        act=acts[act],  # type: ignore[arg-type]
        qkv_bias=record.get("qkv_bias", True),
        norm_eps=record.get("layer_norm_eps", 1e-12),
        mean=mean,
        std=std,
    )
    return Source(name, "transformers", _filled(config, from_layout(state), name))


def _normalization(folder: Path, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of `preprocessor_config.json`; 0.5, as for Google's ViTs, without one."""
    path, fallback = folder / "preprocessor_config.json", (0.5,) * channels
    record = read_json(path) if path.is_file() else {}
    found = record if isinstance(record, dict) else {}
    return tuple(found.get("image_mean", fallback)), tuple(found.get("image_std", fallback))


def _filled(config: ViTConfig, state: dict[str, Tensor], name: str) -> VisionTransformer:
    try:
        model = VisionTransformer(config)
        load_checkpoint(model, state, layout="saccade")
    except ConfigError as error:
        raise ConfigError(f"{name!r} cannot be rebuilt: {error}") from None
    return model.eval()


@torch.no_grad()
def _compare(model: VisionTransformer, original: nn.Module, name: str) -> None:
    """Raise if the rebuilt model gives other logits than the original."""
    size = (2, model.config.in_chans, *model.config.img_size)
    images = torch.randn(size, generator=torch.Generator().manual_seed(0))
    found, expected = model(images), original(images)
    if (found - expected).norm() > MAX_DIFFERENCE * expected.norm().clamp(min=1e-12):
        raise ConfigError(
            f"SOURCE must be a plain ViT to become a run; saccade's rebuilt {name!r} gives other "
            "logits; swap_attention changes it in place"
        )
