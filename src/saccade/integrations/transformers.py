"""saccade's attentions in Hugging Face transformers (5.x), by name.

    register()
    AutoModel.from_pretrained(folder, attn_implementation="saccade_taylor")
    model.set_attn_implementation("saccade_taylorshift")

Every attention has an entry in the attention interface and in the mask interface. Without the
second, transformers passes no mask. A layer owns its core as the submodule `saccade_core`, so
learned parameters are trained, saved by `save_pretrained`, and loaded by `from_pretrained` with the
same `attn_implementation`, which transformers does not save. Cores are attached when a model is
built or its implementation is set; `register` wraps three methods of `PreTrainedModel` for that.

`output_attentions=True` gives the maps of every attention. Masks of padding work; a causal mask or
an additive bias raises unless the attention is softmax.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.integrations.calls import attend, attention_weights, build_core, refuse_causal
from saccade.layers import AttentionCore
from saccade.layers.attentions import ATTENTIONS, check_options
from saccade.layers.cores import SoftmaxCore

__all__ = [
    "CORE",
    "MIXED",
    "PREFIX",
    "attach_core",
    "attention_layers",
    "ensure_registered",
    "heads_of",
    "register",
]

PREFIX = "saccade_"
MIXED = "saccade"
"""The implementation that uses the core of each layer, and softmax in layers without one."""
CORE = "saccade_core"
_REFUSED = ("position_bias", "softcap", "s_aux", "sliding_window", "cache")
"""Arguments of attention functions that change the scores or keys; attentions here refuse them."""

_options: dict[str, dict[str, Any]] = {}


def register(options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Add `saccade_<name>` for every attention to the interfaces of transformers.

    Args:
        options: Options of attentions by name, such as `{"taylor": {"center_keys": True}}`, for
            models that are built afterwards. Earlier options are replaced.

    Raises:
        UnknownNameError: A name or an option does not exist.
    """
    for name, given in (options or {}).items():
        check_options(name, given)
    _options.clear()
    _options.update({name: dict(given) for name, given in (options or {}).items()})
    ensure_registered()


def ensure_registered() -> None:
    """Add the entries, if `register` has not yet."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import PreTrainedModel

    for implementation in (MIXED, *(PREFIX + name for name in ATTENTIONS)):
        AttentionInterface.register(implementation, _attention_forward)
        AttentionMaskInterface.register(implementation, _mask)
    if not hasattr(PreTrainedModel.post_init, "__wrapped__"):
        _wrap(PreTrainedModel)


def attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a transformers model that call its attention interface, by name."""
    for path, module in model.named_modules():
        forward = inspect.unwrap(type(module).forward)
        code = getattr(forward, "__code__", None)
        if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
            yield path, module


def attach_core(layer: nn.Module, name: str, options: dict[str, Any], index: int) -> None:
    """Give a layer the core of an attention; replace another that it has.

    Raises:
        ConfigError: The number or the width of the heads of the layer is unknown.
    """
    core = build_core(name, *heads_of(layer), options, index=index)
    core.recipe = (name, options, index)  # type: ignore[assignment]
    like = next(layer.parameters(), None)
    if like is not None:
        core.to(like.device, like.dtype)
    layer.add_module(CORE, core.train(layer.training))


def heads_of(layer: nn.Module) -> tuple[int, int]:
    """Number and width of the heads of a layer."""
    config = getattr(layer, "config", None)
    heads, width = (
        next((found for o, n in places if isinstance(found := getattr(o, n, None), int)), None)
        for places in (
            [
                *((layer, name) for name in ("num_attention_heads", "num_heads", "n_heads")),
                (config, "num_attention_heads"),
            ],
            [
                *((layer, name) for name in ("head_dim", "attention_head_size")),
                (config, "head_dim"),
            ],
        )
    )
    hidden = getattr(config, "hidden_size", None)
    if heads and width is None and isinstance(hidden, int):
        if hidden % heads:
            raise ConfigError(f"num_attention_heads must divide hidden_size={hidden}, got {heads}")
        width = hidden // heads
    if not heads or not width:
        raise ConfigError(f"{type(layer).__name__} must have num_attention_heads and head_dim")
    return heads, width


def _wrap(base: Any) -> None:
    """Attach cores when a model is built or its implementation is set; initialize them."""
    post_init, set_implementation = base.post_init, base.set_attn_implementation
    initialize = base._initialize_weights

    @wraps(post_init)
    def build(self: Any) -> None:
        _attach_all(self)
        post_init(self)

    @wraps(set_implementation)
    def choose(self: Any, *args: Any, **kwargs: Any) -> None:
        set_implementation(self, *args, **kwargs)
        _attach_all(self)

    @wraps(initialize)
    def fill(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if isinstance(module, AttentionCore):
            _initialize(module)
        else:
            initialize(self, module, *args, **kwargs)

    base.post_init, base.set_attn_implementation = build, choose
    base._initialize_weights = fill


def _attach_all(model: nn.Module) -> None:
    """Attach the core of `config._attn_implementation` to every layer, or remove the cores."""
    for index, (_, layer) in enumerate(attention_layers(model)):
        name = _attention_of(layer)
        own = getattr(layer, CORE, None)
        if name is None and own is not None:
            delattr(layer, CORE)
        elif name and (own is None or own.recipe[0] != name):
            attach_core(layer, name, _options.get(name, {}), index)


def _attention_of(layer: nn.Module) -> str | None:
    """The attention that a layer's configuration names; "" to leave its core, None for none."""
    implementation = str(getattr(getattr(layer, "config", None), "_attn_implementation", ""))
    if implementation == MIXED:
        return ""
    name = implementation.removeprefix(PREFIX)
    return name if implementation.startswith(PREFIX) and name in ATTENTIONS else None


@torch.no_grad()
def _initialize(core: AttentionCore) -> None:
    """Fill the tensors of a core that no checkpoint has filled."""
    name, options, index = core.recipe  # type: ignore[misc]
    tensors = core.state_dict(keep_vars=True)
    with torch.device("cpu"):
        made = build_core(name, core.num_heads, core.head_dim, options, index=index)
    for key, fresh in made.state_dict().items():
        if not getattr(tensors[key], "_is_hf_initialized", False):
            tensors[key].copy_(fresh)
    core._is_hf_initialized = True  # type: ignore[assignment]


def _mask(
    *args: Any, mask_function: Callable[..., Any] | None = None, **kwargs: Any
) -> Tensor | None:
    """A mask of keys (B, 1, 1, S) for padding; transformers' own mask otherwise."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    padding = kwargs.get("attention_mask")
    if mask_function is not bidirectional_mask_function:
        if mask_function is not None:
            kwargs["mask_function"] = mask_function
        found: Tensor | None = sdpa_mask(*args, **kwargs)
        return found
    if padding is None:
        return None
    mask: Tensor = padding.bool()
    can_skip = kwargs.get("allow_is_bidirectional_skip") and not torch.compiler.is_compiling()
    return None if can_skip and mask.all() else mask[:, None, None, :]


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of all implementations: output (B, N, H, E), and weights or None."""
    core = getattr(module, CORE, None)
    wants_maps = bool(kwargs.get("output_attentions"))
    if core is None or isinstance(core, SoftmaxCore):
        out = _softmax(module, query, key, value, attention_mask, scaling, dropout, kwargs)
        if not wants_maps:
            return out, None
        q, k, _ = _prepared(query, key, value, scaling)
        core = core or SoftmaxCore(q.shape[1], q.shape[-1])
        return out, attention_weights(core, q, k, attn_mask=attention_mask, name="softmax")
    name = core.recipe[0]
    for refused in _REFUSED:
        if kwargs.get(refused) is not None:
            raise ConfigError(
                f"{refused} must be None for attention {name!r}, got a value; only softmax can "
                "express it"
            )
    causal = kwargs.get("is_causal")
    refuse_causal(name, bool(getattr(module, "is_causal", False) if causal is None else causal))
    q, k, v = _prepared(query, key, value, scaling)
    options: dict[str, Any] = {"attn_mask": attention_mask, "name": name}
    out = attend(core, q, k, v, is_causal=False, dropout=dropout, **options)
    weights = attention_weights(core, q, k, **options) if wants_maps else None
    return out.transpose(1, 2).contiguous(), weights


def _prepared(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one dtype and number of heads, for scores q.k / sqrt(D)."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        query = query * (scaling * query.shape[-1] ** 0.5)
    return query.to(value.dtype), key.to(value.dtype), value


def _softmax(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> Tensor:
    """transformers' own fused softmax, with all that it supports."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    kwargs = {k: v for k, v in kwargs.items() if k != "output_attentions"}
    out: Tensor = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    return out
