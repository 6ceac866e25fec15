"""Multi-head self-attention with an interchangeable core.

    q, k, v = split(qkv(x)),   y = proj(concat_heads(core(q, k, v)))

All attentions share the projections, which are named as in timm (`qkv`, `proj`). The core is the
attention mechanism.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.attentions import ATTENTIONS, create_core
from saccade.layers.cores import SoftmaxCore, TaylorCore
from saccade.layers.local_conv import LocalConv
from saccade.layers.windows import (
    WindowLayout,
    check_window,
    window_attention,
    window_layout,
    window_weights,
)

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention over tokens (B, N, C).

    Args:
        dim: Width C of the tokens.
        num_heads: Number of heads H.
        attention: One of `list_attentions()`.
        head_dim: Width D of a head; C / H by default.
        qkv_bias: True adds a bias to q, k and v.
        attn_drop: Dropout of the attention weights; must be 0 for attentions without weights.
        proj_drop: Dropout of the output.
        window: Side, or (height, width), of the windows within which patches attend; None for
            attention over all tokens.
        shifted: True shifts the windows by half their size.
        local_conv: Side of a depthwise convolution of the values over the tokens of the grid, which
            is added to the output; None for none.
        is_line: True if the tokens are in a line, for the convolution.
        attention_options: Options of the core, such as `{"num_features": 64}` for Performers.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        attention: str = "taylorshift",
        *,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        window: int | tuple[int, int] | None = None,
        shifted: bool = False,
        local_conv: int | None = None,
        is_line: bool = False,
        attention_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = _check_heads(dim, num_heads, head_dim)
        self.attention = attention
        self.window = check_window(window)
        self.shifted = shifted
        if shifted and window is None:
            raise ConfigError("shifted must be False without a window, got True; set window too")
        if window is not None and ATTENTIONS[attention].self_only:
            raise ConfigError(
                f"window must be None with attention={attention!r}, got {window}: its queries and "
                "keys must be the same tokens, and those of a window attend to the class token too"
            )
        inner = num_heads * self.head_dim
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.core = create_core(
            attention,
            num_heads,
            self.head_dim,
            attn_drop=_check_probability("attn_drop", attn_drop),
            options=attention_options,
        )
        self.local_conv = (
            None if local_conv is None else LocalConv(inner, local_conv, is_line=is_line)
        )
        self.proj = nn.Linear(inner, dim)
        self.proj_drop = nn.Dropout(_check_probability("proj_drop", proj_drop))

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend: (B, N, C) -> (B, N, C).

        Args:
            x: Tokens; with a window, prefix tokens first, then the patches row by row.
            key_mask: (B, N), True = attend.
            grid: (h, w) of the patches, or (1, N) of tokens in a line; needed with a window or a
                convolution.
            attn_mask: Mask of queries and keys as in `scaled_dot_product_attention`: bool, or added
                to the scores, broadcast to (B, H, N, N). Attentions other than softmax accept only
                bool masks of shape (B, 1, 1, N), which mask a key for all queries.
        """
        if attn_mask is not None:
            if key_mask is not None:
                raise ConfigError(
                    "attn_mask must be None if key_mask is given; combine the two masks"
                )
            key_mask = _as_key_mask(attn_mask, x)
        if attn_mask is not None and key_mask is None:
            y = self._attend_masked(x, attn_mask).transpose(1, 2)
        elif self.window is None and key_mask is None and self.local_conv is None:
            y = self.core.packed(self.packed_heads(x))
        else:
            q, k, v = self.heads(x)
            y = self.attend(q, k, v, key_mask=key_mask, grid=grid).transpose(1, 2)
            if self.local_conv is not None:
                y = y.flatten(2) + self._local(v, key_mask, grid)
        projected: Tensor = self.proj_drop(self.proj(y.flatten(2)))
        return projected

    def _local(self, v: Tensor, key_mask: Tensor | None, grid: tuple[int, int] | None) -> Tensor:
        """The convolution of the values, those of masked keys left out: (B, N, H * E)."""
        assert self.local_conv is not None
        if key_mask is not None:
            v = v.masked_fill(~key_mask[:, None, :, None], 0)
        out: Tensor = self.local_conv(v, grid)
        return out

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens (B, N, C) to q, k and v, three views (B, H, N, D) of one tensor."""
        q, k, v = self.packed_heads(x).permute(2, 0, 3, 1, 4)
        return q, k, v

    def packed_heads(self, x: Tensor) -> Tensor:
        """Project tokens (B, N, C) to q, k and v in one tensor (B, N, 3, H, D)."""
        if x.dim() != 3 or x.shape[-1] != self.qkv.in_features:
            raise ConfigError(
                f"x must be a tensor of shape (B, N, {self.qkv.in_features}), got {tuple(x.shape)}"
            )
        batch, tokens, _ = x.shape
        qkv: Tensor = self.qkv(x).view(batch, tokens, 3, self.num_heads, self.head_dim)
        return qkv

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tensor:
        """Apply the core to q, k and v, within windows if there are any: (B, H, N, E)."""
        if self.window is None:
            out: Tensor = self.core(q, k, v, key_mask=key_mask)
            return out
        layout = self._layout(q.shape[2], grid, q)
        return window_attention(self.core, q, k, v, layout=layout, key_mask=key_mask)

    def _attend_masked(self, x: Tensor, attn_mask: Tensor) -> Tensor:
        """Softmax attention with a mask of queries and keys, (B, H, N, D)."""
        plain = self.window is None and self.local_conv is None
        if not isinstance(self.core, SoftmaxCore) or not plain:
            where = "within windows" if self.window is not None else "with local_conv"
            where = where if not plain else f"of attention={self.attention!r}"
            raise ConfigError(
                f"attn_mask {where} must be a bool tensor of shape (B, 1, 1, N), which masks keys "
                f"for all queries, got {attn_mask.dtype} of shape {tuple(attn_mask.shape)}; "
                "attention='softmax' without windows and local_conv accepts any mask"
            )
        q, k, v = self.heads(x)
        mask = attn_mask if attn_mask.dtype == torch.bool else attn_mask.to(q.dtype)
        drop = self.core.attn_drop if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)

    def attention_weights(
        self,
        x: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tensor:
        """Attention weights of chosen queries over all tokens, (B, H, Q, N).

        `queries` holds the indices of the queries; None means all.
        """
        q, k, _ = self.heads(x)
        if self.window is None:
            return self.core.attention_weights(q, k, queries=queries, key_mask=key_mask)
        layout = self._layout(x.shape[1], grid, x)
        return window_weights(self.core, q, k, layout=layout, key_mask=key_mask, queries=queries)

    def flops(self, num_tokens: int, *, grid: tuple[int, int] | None = None) -> int:
        """FLOPs of the matrix products for one sample; a multiply-add counts as 2."""
        projections = 2 * num_tokens * (self.qkv.weight.numel() + self.proj.weight.numel())
        if self.local_conv is not None and grid is not None:
            projections += self.local_conv.flops(grid[0] * grid[1])
        if self.window is None:
            return projections + self.core.flops(num_tokens)
        layout = self._layout(num_tokens, grid, self.qkv.weight)
        windows, places = layout.patch.shape
        prefix = num_tokens - layout.place.numel()
        # Each window counts as self-attention over its places and the prefix tokens.
        return projections + windows * self.core.flops(places + prefix)

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """The number of tokens above which Taylor attention uses its linear-time form."""
        if not isinstance(self.core, TaylorCore):
            raise AttributeError(
                f"attention {self.attention!r} has no N0: it has only one algorithm"
            )
        return self.core.N0

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        if not isinstance(self.core, TaylorCore):
            raise AttributeError(
                f"attention {self.attention!r} has no N0: it has only one algorithm"
            )
        self.core.N0 = tokens

    def _layout(self, tokens: int, grid: tuple[int, int] | None, like: Tensor) -> WindowLayout:
        if grid is None or grid[0] * grid[1] > tokens:
            raise ConfigError(
                f"grid must be the (rows, columns) of the patches among {tokens} tokens, got "
                f"{grid!r}; attention within windows needs it"
            )
        window = self.window or grid
        return window_layout(grid, window, self.shifted, like.device)


def _as_key_mask(attn_mask: Tensor, x: Tensor) -> Tensor | None:
    """A mask of keys, the same for all heads and queries, as (B, N); None for other masks."""
    batch, tokens, _ = x.shape
    shape = (1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape)
    if len(shape) != 4 or shape[1:3] != (1, 1) or attn_mask.dtype != torch.bool:
        return None
    return attn_mask.reshape(shape[0], shape[3]).expand(batch, tokens)


def _check_heads(dim: int, num_heads: int, head_dim: int | None) -> int:
    for name, value in (("dim", dim), ("num_heads", num_heads), ("head_dim", head_dim)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if head_dim is not None:
        return head_dim
    if dim % num_heads:
        raise ConfigError(
            f"num_heads must be a divisor of dim={dim}, got {num_heads}; or set head_dim"
        )
    return dim // num_heads


def _check_probability(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be a probability in [0, 1), got {value!r}")
    return value
