"""`swap_attention`: put another attention into a model of timm, transformers or saccade.

The model is changed in place. Its parameters stay the same objects, under the same names; learned
parameters of the attention are added below the layer (`core` or `saccade_core`). Rotary embeddings,
norms of q and k, gates and grouped queries are kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from saccade.errors import ConfigError
from saccade.integrations.calls import build_core
from saccade.layers import MultiHeadAttention
from saccade.layers.attentions import ATTENTIONS, check_options
from saccade.models.size_limits import count_tokens
from saccade.models.transformer import Transformer

__all__ = ["RELATIVE", "Swapped", "has_relative_bias", "swap_attention"]

RELATIVE = "a relative position bias, which is added to the scores; only softmax can express it"


@dataclass(frozen=True)
class Swapped:
    """What `swap_attention` did.

    Attributes:
        name: The attention.
        swapped: Names of the layers that have it now, in the order of the model.
        left: Reason by name of a layer that was not changed.
    """

    name: str
    swapped: tuple[str, ...]
    left: Mapping[str, str]

    def __str__(self) -> str:
        """The counts, and the reasons."""
        reasons = "".join(f"; {path}: {why}" for path, why in self.left.items())
        return f"{self.name} in {len(self.swapped)} layers, {len(self.left)} left{reasons}"


def swap_attention(
    model: nn.Module, name: str, *, layers: Iterable[int] | None = None, **options: Any
) -> Swapped:
    """Replace the attention of a model's layers, in place.

    Args:
        model: A model of saccade, timm or transformers.
        name: One of `list_attentions()`.
        layers: Indices of the attention layers to change, in the order of the model; negative ones
            count from the end; None for all.
        **options: Options of the attention, such as `center_keys=True`.

    Returns:
        The names of the changed layers, and the reason for each layer that was left.

    Raises:
        UnknownNameError: The name or an option does not exist.
        ConfigError: No layer can be changed, an index is out of range, or the attention cannot run
            with the heads of the model. The model is then unchanged.
    """
    check_options(name, options)
    found = list(_attention_layers(model))
    left = dict(_unknown(model, {path for path, _, _ in found}))
    usable = []
    for path, layer, kind in found:
        if reason := _obstacle(layer, name):
            left[path] = reason
        else:
            usable.append((path, layer, kind))
    if not usable:
        raise ConfigError(
            "model must have attention layers of timm, transformers or saccade that can be "
            f"replaced, got {type(model).__name__} with {_counted(left)}"
        )
    chosen = _chosen(len(usable), layers)
    for place, (path, _, _) in enumerate(usable):
        if place not in chosen:
            left[path] = "not among the chosen layers"
    targets = [(place, *usable[place]) for place in sorted(chosen)]
    _swap(model, targets, name, options)
    return Swapped(name, tuple(path for _, path, _, _ in targets), left)


def _counted(left: Mapping[str, str]) -> str:
    """The reasons and how many layers have each, or "no attention layer"."""
    counts = Counter(left.values())
    found = [f"{why} ({count} layers)" for why, count in counts.items()]
    return "; ".join(found) or "no attention layer"


def _chosen(count: int, layers: Iterable[int] | None) -> set[int]:
    """The chosen indices, counted from 0."""
    asked = list(range(count) if layers is None else layers)
    if not asked or not all(-count <= index < count for index in asked):
        raise ConfigError(f"layers must be indices from 0 to {count - 1}, got {asked}")
    return {index % count for index in asked}


def _attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield path, module and library of every attention layer that is known."""
    timm_classes = _timm_classes()
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            yield path, module, "saccade"
        elif type(module) in timm_classes or _is_ours(module):
            yield path, module, "timm"
    if "transformers" in sys.modules:
        from saccade.integrations.transformers import attention_layers

        for path, module in attention_layers(model):
            yield path, module, "transformers"


def _timm_classes() -> tuple[type, ...]:
    """timm's attention layers, if timm is imported; subclasses may compute something else."""
    if "timm" not in sys.modules:
        return ()
    from timm.layers.attention import Attention, AttentionRope
    from timm.models.eva import EvaAttention

    return Attention, AttentionRope, EvaAttention


def _is_ours(module: nn.Module) -> bool:
    """True for a layer that replaced one of timm's."""
    if "saccade.integrations.timm" not in sys.modules:
        return False
    from saccade.integrations.timm import TimmAttention

    return isinstance(module, TimmAttention)


def _obstacle(layer: nn.Module, name: str) -> str | None:
    """Why a known layer cannot have the attention."""
    if has_relative_bias(layer):
        return RELATIVE
    if getattr(layer, "is_causal", False) and name != "softmax":
        return "a causal mask; only softmax can express it"
    config = getattr(layer, "config", None)
    if "Cross" in type(layer).__name__ or getattr(config, "is_decoder", False):
        return "keys of another sequence, or a cache"
    return None


def has_relative_bias(layer: nn.Module) -> bool:
    """True if a layer has a table or module of relative positions."""
    parts = {**vars(layer), **layer._parameters, **layer._modules, **layer._buffers}
    return any(
        ("relative" in key or key.startswith("rel_pos")) and part is not None and part is not False
        for key, part in parts.items()
    )


def _unknown(model: nn.Module, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the path of every other module that computes an attention, and what it is."""
    for path, module in model.named_modules():
        title = type(module).__name__
        is_attention = hasattr(module, "fused_attn") or "attention" in title.lower()
        inside = any(path == own or path.startswith(f"{own}.") for own in known)
        around = any(own.startswith(f"{path}.") for own in known) or not path
        if is_attention and not inside and not around:
            relative = has_relative_bias(module)
            yield path, RELATIVE if relative else f"an unknown attention layer, {title}"


def _swap(
    model: nn.Module,
    targets: list[tuple[int, str, nn.Module, str]],
    name: str,
    options: dict[str, Any],
) -> None:
    by_kind = {
        kind: [target for target in targets if target[3] == kind]
        for kind in ("saccade", "timm", "transformers")
    }
    if ours := by_kind["saccade"]:
        _swap_saccade(model, ours, name, options)
    if theirs := by_kind["timm"]:
        from saccade.integrations.timm import replacement

        made = [(path, replacement(old, name, options, place)) for place, path, old, _ in theirs]
        for path, new in made:
            model.set_submodule(path, new)
    if theirs := by_kind["transformers"]:
        _swap_transformers(model, theirs, name, options)


def _swap_saccade(
    model: nn.Module,
    targets: list[tuple[int, str, nn.Module, str]],
    name: str,
    options: dict[str, Any],
) -> None:
    """Replace the cores, and say so in the model's configuration if there is one."""
    config = _swapped_config(model, {place for place, *_ in targets}, name, options)
    if config is not None and "max_tokens" in ATTENTIONS[name].options:
        options = {"max_tokens": count_tokens(config), **options}
    made = []
    for place, _, layer, _ in targets:
        assert isinstance(layer, MultiHeadAttention)
        droppable = ATTENTIONS[name].core_class.can_drop_weights
        core = build_core(
            name,
            layer.num_heads,
            layer.head_dim,
            options,
            attn_drop=layer.core.attn_drop if droppable else 0.0,
            index=place,
        )
        like = layer.qkv.weight
        made.append((layer, core.to(like.device, like.dtype).train(layer.training)))
    for layer, core in made:
        layer.core, layer.attention = core, name
    if config is not None:
        model.config = config


def _swapped_config(
    model: nn.Module, chosen: set[int], name: str, options: dict[str, Any]
) -> Any | None:
    """The configuration of a saccade model after the swap; None for other modules.

    Raises:
        ConfigError: The model would have two attentions besides softmax, which none can express.
    """
    if not isinstance(model, Transformer):
        return None
    before = model.config
    kept = tuple(index for index in range(before.depth) if index not in chosen)
    others = {model.blocks[index].attn.attention for index in kept} - {"softmax"}
    if others:
        raise ConfigError(
            f"layers must include all blocks whose attention is not softmax, got {sorted(chosen)} "
            f"of a model with {', '.join(sorted(others))} in other blocks"
        )
    can_drop = ATTENTIONS[name].core_class.can_drop_weights
    return replace(
        before,
        attention=name,
        attention_options=dict(options),
        softmax_blocks=kept if name != "softmax" else (),
        feature_seed=0,
        attn_drop_rate=before.attn_drop_rate if can_drop else 0.0,
    )


def _swap_transformers(
    model: nn.Module,
    targets: list[tuple[int, str, nn.Module, str]],
    name: str,
    options: dict[str, Any],
) -> None:
    from saccade.integrations import transformers as ours

    layers = [layer for _, _, layer, _ in targets]
    for layer in layers:  # raises before anything is changed
        build_core(name, *ours.heads_of(layer), options, index=0)
    ours.ensure_registered()
    everywhere = {id(layer) for _, layer in ours.attention_layers(model)} == set(map(id, layers))
    model.set_attn_implementation(ours.MIXED)  # type: ignore[operator]
    for place, _, layer, _ in targets:
        ours.attach_core(layer, name, options, place)
    if everywhere:
        model.set_attn_implementation(ours.PREFIX + name)  # type: ignore[operator]
