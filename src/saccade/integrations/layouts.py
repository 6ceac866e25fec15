"""Names of the same weights in different libraries, and the conversion of state dicts both ways.

| layout | of |
|---|---|
| `saccade` | this library; timm's names, with the parameters of an attention below `attn.core` |
| `timm` | timm's `VisionTransformer`: the same without `attn.core` |
| `transformers` | `ViTForImageClassification` of transformers 5 |
| `transformers4` | the same in transformers 4 and earlier; most files on the Hub have it |
| `taylorshift` | the published TaylorShift models, whose `temperature` is (1, H, 1, 1) |
| `vit-from-scratch` | github.com/tintn/vision-transformer-from-scratch |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.errors import ConfigError, UnknownNameError, listed

__all__ = ["LAYOUTS", "detect_layout", "from_layout", "to_layout"]

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The names of one library.

    Attributes:
        sign: A pattern that a key of this layout matches, and of no layout before it.
        names: Pairs (theirs, ours) of dotted names; `{i}` is the number of a block.
        qkv: Their names of the separate projections q, k and v; None if they are joined.
        prefix: A prefix of all their names but the classifier's, which files may lack.
        dropped: Pattern of their names that are not used here.
    """

    sign: str
    names: tuple[tuple[str, str], ...] = ()
    qkv: tuple[str, str, str] | None = None
    prefix: str = ""
    dropped: str = "$^"


_HF_SHARED = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("layernorm", "norm"),
    ("classifier", "head"),
)


def _hf_names(block: str, **parts: str) -> tuple[tuple[str, str], ...]:
    ours = {"before": "norm1", "out": "attn.proj", "after": "norm2", "fc1": "mlp.fc1"}
    ours |= {"fc2": "mlp.fc2", "core": "attn.core"}
    pairs = ((f"{block}.{theirs}", f"blocks.{{i}}.{ours[part]}") for part, theirs in parts.items())
    return (*_HF_SHARED, *pairs)


_HF_DROPPED = r"(vit\.)?(pooler\.|embeddings\.mask_token)"

LAYOUTS: dict[str, Layout] = {
    "transformers": Layout(
        sign=r"(vit\.)?layers\.\d+\.attention\.q_proj\.weight",
        names=_hf_names(
            "layers.{i}",
            before="layernorm_before",
            out="attention.o_proj",
            after="layernorm_after",
            fc1="mlp.fc1",
            fc2="mlp.fc2",
            core="attention.saccade_core",
        ),
        qkv=tuple(f"layers.{{i}}.attention.{part}_proj" for part in "qkv"),  # type: ignore[arg-type]
        prefix="vit.",
        dropped=_HF_DROPPED,
    ),
    "transformers4": Layout(
        sign=r"(vit\.)?encoder\.layer\.\d+\.attention\.attention\.query\.weight",
        names=_hf_names(
            "encoder.layer.{i}",
            before="layernorm_before",
            out="attention.output.dense",
            after="layernorm_after",
            fc1="intermediate.dense",
            fc2="output.dense",
        ),
        qkv=tuple(  # type: ignore[arg-type]
            f"encoder.layer.{{i}}.attention.attention.{part}" for part in ("query", "key", "value")
        ),
        prefix="vit.",
        dropped=_HF_DROPPED,
    ),
    "vit-from-scratch": Layout(
        sign=r"encoder\.blocks\.\d+\.attention\.qkv_projection\.weight",
        names=(
            ("embedding.patch_embeddings.projection", "patch_embed.proj"),
            ("embedding.cls_token", "cls_token"),
            ("embedding.position_embeddings", "pos_embed"),
            ("encoder.blocks.{i}.layernorm_1", "blocks.{i}.norm1"),
            ("encoder.blocks.{i}.attention.qkv_projection", "blocks.{i}.attn.qkv"),
            ("encoder.blocks.{i}.attention.output_projection", "blocks.{i}.attn.proj"),
            ("encoder.blocks.{i}.layernorm_2", "blocks.{i}.norm2"),
            ("encoder.blocks.{i}.mlp.dense_1", "blocks.{i}.mlp.fc1"),
            ("encoder.blocks.{i}.mlp.dense_2", "blocks.{i}.mlp.fc2"),
            ("classifier", "head"),
        ),
    ),
    "taylorshift": Layout(
        sign=r"blocks\.\d+\.attn\.temperature",
        names=(("blocks.{i}.attn.temperature", "blocks.{i}.attn.core.temperature"), ("", "")),
    ),
    "saccade": Layout(sign=r"blocks\.\d+\.attn\.core\.", names=(("", ""),)),
    "timm": Layout(sign=r"blocks\.\d+\.attn\.qkv\.weight", names=(("", ""),)),
}
"""Layouts by name; ("", "") keeps a name. A file has the first layout whose `sign` it matches."""

_CONV_TOKENS = tuple(
    (f"patch_embed.proj.{3 * place + step}.", f"token_embed.{part}.{place}.")
    for place in range(3)
    for step, part in enumerate(("convs", "norms"))
)


def detect_layout(state: State) -> str:
    """The layout of a state dict.

    Raises:
        ConfigError: It has none of `LAYOUTS`.
    """
    for name, layout in LAYOUTS.items():
        if any(re.match(layout.sign, key) for key in state):
            return name
    shown = listed(sorted(state)[:3])
    raise ConfigError(
        f"weights must have one of the layouts {', '.join(LAYOUTS)}, got keys {shown}"
    )


def from_layout(state: State, layout: str | None = None) -> dict[str, Tensor]:
    """Convert a state dict to the names of this library.

    Args:
        state: The tensors of a file.
        layout: One of `LAYOUTS`; None to detect it.

    Raises:
        ConfigError: The layout cannot be detected, or a name does not belong to it.
    """
    known = _layout(layout or detect_layout(state))
    prefix = known.prefix if any(key.startswith(known.prefix) for key in state) else ""
    found: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if re.match(known.dropped, key):
            continue
        plain = key.removeprefix(prefix)
        ours = _renamed(plain, [*known.names, *_as_thirds(known)])
        if ours is None:
            raise ConfigError(f"weights must not have {key!r} in the layout {layout!r}")
        found[ours] = tensor
    found = _joined(found)
    return _from_published(found) if known is LAYOUTS["taylorshift"] else found


def to_layout(state: State, layout: str) -> dict[str, Tensor]:
    """Convert a state dict of this library to another layout; the inverse of `from_layout`.

    Raises:
        ConfigError: A tensor has no name in that layout, such as the parameters of an attention in
            a layout of softmax models.
    """
    known = _layout(layout)
    if known is LAYOUTS["taylorshift"]:
        state = _to_published(state)
    state = _split(state) if known.qkv else dict(state)
    pairs = [(ours, theirs) for theirs, ours in (*known.names, *_as_thirds(known))]
    found = {}
    for key, tensor in state.items():
        theirs = _renamed(key, pairs)
        is_foreign = layout == "timm" and ".attn.core." in key
        if theirs is None or is_foreign:
            raise ConfigError(f"state must have no {key!r} for the layout {layout!r}")
        is_head = theirs.startswith("classifier.")
        found[theirs if is_head else known.prefix + theirs] = tensor
    return found


def _layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise UnknownNameError("layout", name, LAYOUTS)
    return LAYOUTS[name]


def _as_thirds(layout: Layout) -> list[tuple[str, str]]:
    """Pairs for the separate projections; ours are joined later."""
    thirds = enumerate(layout.qkv or ())
    return [(theirs, f"blocks.{{i}}.attn.qkv/{place}") for place, theirs in thirds]


def _renamed(key: str, pairs: list[tuple[str, str]]) -> str | None:
    """The key with the first fitting name replaced; None if none fits."""
    for old, new in pairs:
        if not old:
            return key
        pattern = re.escape(old).replace(r"\{i\}", r"(\d+)")
        if found := re.fullmatch(rf"{pattern}(|\..+)", key):
            number = found[1] if "{i}" in old else ""
            return new.replace("{i}", number) + found[found.lastindex or 0]
    return None


def _joined(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate `...qkv/0.weight`, `/1` and `/2`."""
    found = {key: tensor for key, tensor in state.items() if "qkv/" not in key}
    for key in state:
        if "qkv/0" in key:
            parts = [state.get(key.replace("qkv/0", f"qkv/{place}")) for place in range(3)]
            if any(part is None for part in parts):
                raise ConfigError(f"weights must have q, k and v of {key.partition('/')[0]!r}")
            found[key.replace("qkv/0", "qkv")] = torch.cat([p for p in parts if p is not None])
    return found


def _split(state: State) -> dict[str, Tensor]:
    """The inverse of `_joined`."""
    found = {}
    for key, tensor in state.items():
        if re.fullmatch(r"blocks\.\d+\.attn\.qkv\.(weight|bias)", key):
            for place, part in enumerate(tensor.chunk(3)):
                found[key.replace("qkv", f"qkv/{place}")] = part.contiguous()
        else:
            found[key] = tensor
    return found


def _from_published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the batch axis of temperatures; rename the embedding of sequence models."""
    is_sequence = "patch_embed.weight" in state or (
        "patch_embed.proj.0.weight" in state and state["patch_embed.proj.0.weight"].dim() == 3
    )
    pairs = [("patch_embed.", "token_embed.proj.")] if "patch_embed.weight" in state else []
    pairs += list(_CONV_TOKENS) if is_sequence else []
    found = {}
    for key, tensor in state.items():
        is_four = key.endswith("core.temperature") and tensor.dim() == 4
        found[_with_prefix_replaced(key, pairs)] = tensor[0] if is_four else tensor
    return found


def _to_published(state: State) -> dict[str, Tensor]:
    pairs = [("token_embed.proj.", "patch_embed."), *((new, old) for old, new in _CONV_TOKENS)]
    return {
        _with_prefix_replaced(key, pairs): tensor[None]
        if key.endswith("core.temperature")
        else tensor
        for key, tensor in state.items()
    }


def _with_prefix_replaced(key: str, pairs: list[tuple[str, str]]) -> str:
    for old, new in pairs:
        if key.startswith(old):
            return new + key[len(old) :]
    return key
