"""saccade's attentions in timm's models, and saccade's models in timm's registry.

    timm.create_model("vit_small_patch16_224", attn_layer=attention("taylor"))
    register(); timm.create_model("vit_small_patch16_224", attn_layer="taylor")
    register(); timm.create_model("saccade_taylorir_base", num_classes=10)

Models of `timm.models.eva` and others with rotary embeddings have no `attn_layer`; `swap_attention`
replaces their modules. timm >= 1.0.29.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.integrations.calls import attend, build_core
from saccade.layers.attentions import ATTENTIONS, check_options
from saccade.models import MODELS, ViTConfig, create_model

__all__ = ["RopeAttention", "TimmAttention", "attention", "register", "replacement"]

PREFIX = "saccade_"
_NOT_OURS = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments that timm passes to every entry point, about weights to download."""


class TimmAttention(nn.Module):
    """timm's `Attention` with a core of saccade: its constructor, its names of parameters.

    Parameters of the core are below `core`. A state dict without any of them, such as that of a
    softmax model, loads with `strict=True`; the core then keeps its values.

    Args:
        dim: Width C of the tokens.
        num_heads: Number of heads H.
        attn_head_dim: Width of a head; C / H by default.
        dim_out: Width of the output; C by default.
        qkv_bias: Add a bias to q, k and v.
        qk_norm: Normalize q and k of each head with `norm_layer`.
        scale_norm: Normalize the joined heads with `norm_layer`.
        proj_bias: Add a bias to the output.
        gated: Multiply the joined heads by a sigmoid gate.
        attn_drop: Dropout of the attention weights; must be 0 for attentions without weights.
        proj_drop: Dropout of the output.
        norm_layer: Class of the norms.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    attention_name: ClassVar[str] = "softmax"
    attention_options: ClassVar[Mapping[str, Any]] = {}
    num_heads: int
    head_dim: int
    qkv: nn.Linear | None
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        gated: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if attn_head_dim is None and dim % num_heads:
            raise ConfigError(f"num_heads must be a divisor of dim={dim}, got {num_heads}")
        if (qk_norm or scale_norm) and norm_layer is None:
            raise ConfigError("norm_layer must be given with qk_norm or scale_norm, got None")
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = attn_head_dim or dim // num_heads
        self.attn_dim = inner = num_heads * self.head_dim
        self.scale = self.head_dim**-0.5
        norm = norm_layer or nn.LayerNorm
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias, **place)
        self.q_norm = norm(self.head_dim, **place) if qk_norm else nn.Identity()
        self.k_norm = norm(self.head_dim, **place) if qk_norm else nn.Identity()
        self.norm = norm(inner, **place) if scale_norm else nn.Identity()
        self.gate = nn.Linear(dim, inner, bias=qkv_bias, **place) if gated else None
        self.proj = nn.Linear(inner, dim_out or dim, bias=proj_bias, **place)
        self.proj_drop = nn.Dropout(proj_drop)
        self.name = self.attention_name
        core = build_core(
            self.name, num_heads, self.head_dim, dict(self.attention_options), attn_drop=attn_drop
        )
        self._adopt(core.to(device=device, dtype=dtype))

    def _adopt(self, core: nn.Module) -> None:
        self.core = core
        self.register_load_state_dict_pre_hook(_keep_own_core)  # type: ignore[no-untyped-call]

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: (B, N, C) -> (B, N, dim_out).

        Args:
            x: Tokens.
            attn_mask: As in `scaled_dot_product_attention`; attentions other than softmax accept
                masks of whole keys only.
            is_causal: Softmax only.
        """
        return self.run(x, None, attn_mask, is_causal)

    def run(
        self, x: Tensor, rope: Tensor | None, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """`forward` with the table of a rotary embedding."""
        q, k, v = self.heads(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = (self._turned(part, rope).to(v.dtype) for part in (q, k))
        if (groups := q.shape[1] // k.shape[1]) > 1:
            k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        y = attend(
            self.core,  # type: ignore[arg-type]
            q,
            k,
            v,
            attn_mask=attn_mask,
            is_causal=is_causal,
            name=self.name,
        )
        y = self.norm(y.transpose(1, 2).flatten(2))  # (B, N, H * E)
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        projected: Tensor = self.proj_drop(self.proj(y))
        return projected

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens (B, N, C) to q, k and v, (B, H, N, D) each."""
        batch, tokens, _ = x.shape
        if self.qkv is None:
            q, k, v = (
                part(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
                for part in (self.q_proj, self.k_proj, self.v_proj)
            )
            return q, k, v
        bias: Tensor | None = self.qkv.bias
        q_bias, k_bias = getattr(self, "q_bias", None), getattr(self, "k_bias", None)
        if q_bias is not None and k_bias is not None:
            bias = torch.cat([q_bias, k_bias, self.v_bias])
        if bias is not None and getattr(self, "qkv_bias_separate", False):
            joined = nn.functional.linear(x, self.qkv.weight) + bias
        else:
            joined = nn.functional.linear(x, self.qkv.weight, bias)
        q, k, v = joined.view(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return q, k, v

    def _turned(self, x: Tensor, rope: Tensor) -> Tensor:
        """Apply the rotary embedding to the tokens after the prefix."""
        from timm.layers.pos_embed_sincos import apply_rot_embed_cat

        prefix = getattr(self, "num_prefix_tokens", 0)
        half = getattr(self, "rotate_half", False)
        turned = apply_rot_embed_cat(x[:, :, prefix:], rope, half=half)
        return torch.cat([x[:, :, :prefix], turned], dim=2)

    def init_non_persistent_buffers(self) -> None:
        """Reset buffers that are not saved, as timm does after building on the meta device."""
        k_bias: Tensor | None = getattr(self, "k_bias", None)
        if k_bias is not None:
            k_bias.zero_()


class RopeAttention(TimmAttention):
    """`TimmAttention` in place of timm's `AttentionRope` and `EvaAttention`."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend with a rotary embedding of q and k: (B, N, C) -> (B, N, C)."""
        return self.run(x, rope, attn_mask, is_causal)


def _keep_own_core(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_unused: object
) -> None:
    """Let a state dict without tensors of the core leave the core as it is."""
    assert isinstance(module.core, nn.Module)
    own = module.core.state_dict(prefix=f"{prefix}core.")
    if not any(key in state_dict for key in own):
        state_dict.update(own)


def attention(name: str, **options: Any) -> type[TimmAttention]:
    """A class for timm's `attn_layer`.

    Args:
        name: One of `list_attentions()`.
        **options: Options of that attention, such as `center_keys=True`.

    Raises:
        UnknownNameError: The name or an option does not exist; the message suggests similar ones.
    """
    check_options(name, options)
    title = "".join(part.title() for part in name.split("_"))
    attributes = {
        "attention_name": name,
        "attention_options": dict(options),
        "__module__": __name__,
        "__doc__": f"timm's attention layer with {ATTENTIONS[name].summary}.",
    }
    return type(f"{title}Attention", (TimmAttention,), attributes)


def replacement(old: nn.Module, name: str, options: dict[str, Any], index: int) -> TimmAttention:
    """A layer with the parameters of one of timm's attention layers and a core of saccade.

    The parameters are shared, not copied, so that optimizers keep them.
    """
    dropping = old.core if isinstance(old, TimmAttention) else old.attn_drop
    drop: Any = getattr(dropping, "attn_drop", getattr(dropping, "p", 0.0))
    droppable = ATTENTIONS[name].core_class.can_drop_weights
    heads, width = old.num_heads, old.head_dim
    assert isinstance(heads, int)
    assert isinstance(width, int)
    core = build_core(
        name, heads, width, options, attn_drop=float(drop) if droppable else 0.0, index=index
    )
    has_rope = isinstance(old, RopeAttention) or "num_prefix_tokens" in vars(old)
    new = (RopeAttention if has_rope else TimmAttention).__new__(
        RopeAttention if has_rope else TimmAttention
    )
    nn.Module.__init__(new)
    hooks = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
    for key, value in vars(old).items():
        if not key.endswith(hooks) and key not in ("_parameters", "_modules", "_buffers"):
            setattr(new, key, value)
    new._parameters, new._buffers = dict(old._parameters), dict(old._buffers)
    kept = {k: m for k, m in old._modules.items() if k not in ("attn_drop", "core")}
    new._modules = kept
    like = next(old.parameters())
    new.name = name
    new._adopt(core.to(like.device, like.dtype).train(old.training))
    return new.train(old.training)


def register() -> None:
    """Add saccade's attentions to timm's table of layers, and its image models to the registry.

    Afterwards `attn_layer="taylor"` works in `timm.create_model`, and
    `timm.create_model("saccade_" + name)` builds the model that `saccade.create_model(name)` does.
    """
    from timm.models import _registry, vision_transformer

    for name in ATTENTIONS:
        vision_transformer.ATTN_LAYERS[name] = attention(name)
    for name, variant in ((name, MODELS[name]) for name in MODELS):
        if isinstance(variant.config, ViTConfig) and not _registry.is_model(PREFIX + name):
            _registry.register_model(_entry_point(name))


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def build(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise ConfigError(
                f"pretrained must be False for {PREFIX + name!r}, got True: no weights are "
                "published; load a file with saccade.integrations.load_checkpoint"
            )
        options = {key: value for key, value in kwargs.items() if key not in _NOT_OURS}
        model: nn.Module = create_model(name, **options)
        return model

    build.__name__ = build.__qualname__ = PREFIX + name
    return build
