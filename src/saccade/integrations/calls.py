"""Call a core as the attention layers of other libraries do: with their masks and dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers import AttentionCore, create_core
from saccade.layers.attentions import ATTENTIONS
from saccade.layers.cores import SoftmaxCore
from saccade.ops.backends import MAX_WIDTH
from saccade.ops.softmax import softmax_weights

__all__ = ["attend", "attention_weights", "build_core", "key_mask_of"]


def build_core(
    name: str,
    num_heads: int,
    head_dim: int,
    options: dict[str, object],
    *,
    attn_drop: float = 0.0,
    index: int | None = None,
) -> AttentionCore:
    """The core of layer `index`, which is the seed of random features unless one is given.

    Raises:
        ConfigError: The attention cannot run with this number of heads or head dim.
    """
    if index is not None and "feature_seed" in ATTENTIONS[name].options:
        options = {"feature_seed": index, **options}
    if options.get("backend") == "triton" and head_dim > MAX_WIDTH:
        raise ConfigError(
            f"head_dim must be at most {MAX_WIDTH} with backend='triton', got {head_dim}; use "
            "backend='auto'"
        )
    return create_core(name, num_heads, head_dim, attn_drop=attn_drop, options=options)


def attend(
    core: AttentionCore,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    name: str,
    dropout: float = 0.0,
) -> Tensor:
    """The output of a core, (B, H, N, E).

    Args:
        core: The core.
        q: Queries (B, H, N, D).
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        attn_mask: As in `scaled_dot_product_attention`. Attentions other than softmax accept masks
            of whole keys only, the same for all heads and queries.
        is_causal: True if a token attends to itself and earlier tokens only; softmax only.
        name: Name of the attention, for messages.
        dropout: Dropout of the attention weights, besides the core's own in training.

    Raises:
        ConfigError: The attention cannot express the mask, or has no weights to drop.
    """
    q, k = q.to(v.dtype), k.to(v.dtype)  # norms return float32 under autocast
    if isinstance(core, SoftmaxCore):
        dropout = max(dropout, core.attn_drop if core.training else 0.0)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=is_causal
        )
    refuse_causal(name, is_causal)
    key_mask = None if attn_mask is None else key_mask_of(attn_mask, k, name)
    if not dropout:
        out: Tensor = core(q, k, v, key_mask=key_mask)
        return out
    if not core.can_drop_weights:
        raise ConfigError(
            f"the dropout of attention weights must be 0 for attention {name!r}, got {dropout}: it "
            "has no weights to drop; set attention_probs_dropout_prob=0 in the model's config"
        )
    weights = core.attention_weights(q, k, key_mask=key_mask)
    return core.finish(F.dropout(weights, dropout) @ v, k, key_mask)


def attention_weights(
    core: AttentionCore, q: Tensor, k: Tensor, *, attn_mask: Tensor | None, name: str
) -> Tensor:
    """The attention weights (B, H, N, S); `Attention.rows` describes the rows."""
    if not isinstance(core, SoftmaxCore):
        key_mask = None if attn_mask is None else key_mask_of(attn_mask, k, name)
        return core.attention_weights(q, k, key_mask=key_mask)
    if attn_mask is None:
        return softmax_weights(q, k)
    scores: Tensor = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    if attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    else:
        scores = scores + attn_mask
    weights: Tensor = scores.softmax(dim=-1).nan_to_num(0.0).to(q.dtype)
    return weights


def refuse_causal(name: str, is_causal: bool) -> None:
    """Raise if a causal mask is used with an attention that does not support it."""
    if is_causal:
        raise ConfigError(
            f"is_causal must be False for attention {name!r}, got True; only softmax can be causal"
        )


def key_mask_of(attn_mask: Tensor, k: Tensor, name: str) -> Tensor:
    """The keys (B, S) that a mask keeps for every head and query.

    Masks with a row for each query, and additive masks of 0 and -inf, are accepted if all rows are
    equal. This cannot be checked in compiled code, because it depends on the values of the mask.

    Raises:
        ConfigError: The mask is not one of whole keys.
    """
    mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
    is_rows = mask.shape[1:3] != (1, 1)
    if (is_rows or mask.dtype != torch.bool) and torch.compiler.is_compiling():
        raise _mask_error(attn_mask, name)
    if mask.dtype != torch.bool:
        kept, dropped = mask == 0, mask <= torch.finfo(mask.dtype).min / 2
        if not (kept | dropped).all():
            raise _mask_error(attn_mask, name)
        mask = kept
    if is_rows:
        if not (mask == mask[:, :1, :1]).all():
            raise _mask_error(attn_mask, name)
        mask = mask[:, :1, :1]
    return mask[:, 0, 0].expand(k.shape[0], k.shape[2])


def _mask_error(attn_mask: Tensor, name: str) -> ConfigError:
    kind = str(attn_mask.dtype).removeprefix("torch.")
    return ConfigError(
        f"attn_mask must be a bool mask of keys, the same for all heads and queries, for attention "
        f"{name!r}, got {kind} of shape {tuple(attn_mask.shape)}; softmax accepts any mask"
    )
