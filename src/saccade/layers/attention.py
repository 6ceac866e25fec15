"""Multi-head self-attention with an interchangeable core.

    q, k, v = split(qkv(x)),   y = proj(concat_heads(core(q, k, v)))

Projections are written once and named as in timm (`qkv`, `proj`); the mechanism is the core's.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.attentions import create_core
from saccade.layers.cores import TaylorCore
from saccade.layers.windows import (
    WindowLayout,
    check_window,
    window_attention,
    window_layout,
    window_weights,
)

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Self-attention of (B, N, C).

    Args:
        dim: Width C.
        num_heads: H.
        attention: A name of `list_attentions()`.
        head_dim: D; C / H by default.
        qkv_bias: Whether q, k, v have a bias.
        attn_drop: Dropout of the attention weights, where the mechanism has any.
        proj_drop: Dropout of the output.
        window: Side, or (height, width), of the windows that patches attend within; None attends
            everywhere.
        shifted: Move the windows by half their size.
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
        attention_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = _check_heads(dim, num_heads, head_dim)
        self.attention = attention
        self.window = check_window(window)
        self.shifted = shifted
        if shifted and window is None:
            raise ConfigError("shifted=True without a window; give window=, or shifted=False")
        inner = num_heads * self.head_dim
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias)
        self.core = create_core(
            attention,
            num_heads,
            self.head_dim,
            attn_drop=_check_probability("attn_drop", attn_drop),
            options=attention_options,
        )
        self.proj = nn.Linear(inner, dim)
        self.proj_drop = nn.Dropout(_check_probability("proj_drop", proj_drop))

    def forward(
        self, x: Tensor, *, key_mask: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> Tensor:
        """Attend: (B, N, C) -> (B, N, C).

        Args:
            x: Tokens; with a window, prefix tokens first, then the patches row by row.
            key_mask: (B, N), True = attend.
            grid: (h, w) of the patches; needed with a window.
        """
        if self.window is None and key_mask is None:
            y = self.core.packed(self.packed_heads(x))
        else:
            y = self.attend(*self.heads(x), key_mask=key_mask, grid=grid).transpose(1, 2)
        projected: Tensor = self.proj_drop(self.proj(y.flatten(2)))
        return projected

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of tokens (B, N, C), each (B, H, N, D) and a view of one product."""
        q, k, v = self.packed_heads(x).permute(2, 0, 3, 1, 4)
        return q, k, v

    def packed_heads(self, x: Tensor) -> Tensor:
        """q, k and v of tokens (B, N, C) as the product leaves them, (B, N, 3, H, D)."""
        if x.dim() != 3 or x.shape[-1] != self.qkv.in_features:
            raise ConfigError(
                f"x has shape {tuple(x.shape)}; expected (B, N, {self.qkv.in_features})"
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
        """What the core makes of q, k and v, in windows where there are any: (B, H, N, E)."""
        if self.window is None:
            out: Tensor = self.core(q, k, v, key_mask=key_mask)
            return out
        layout = self._layout(q.shape[2], grid, q)
        return window_attention(self.core, q, k, v, layout=layout, key_mask=key_mask)

    def attention_weights(
        self,
        x: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Tensor:
        """The weights that chosen tokens give to all tokens, (B, H, Q, N)."""
        q, k, _ = self.heads(x)
        if self.window is None:
            return self.core.attention_weights(q, k, queries=queries, key_mask=key_mask)
        layout = self._layout(x.shape[1], grid, x)
        return window_weights(self.core, q, k, layout=layout, key_mask=key_mask, queries=queries)

    def flops(self, num_tokens: int, *, grid: tuple[int, int] | None = None) -> int:
        """FLOPs of the matrix products for one sample, a multiply-add counted as 2."""
        projections = 2 * num_tokens * (self.qkv.weight.numel() + self.proj.weight.numel())
        if self.window is None:
            return projections + self.core.flops(num_tokens)
        layout = self._layout(num_tokens, grid, self.qkv.weight)
        windows, places = layout.patch.shape
        prefix = num_tokens - layout.place.numel()
        # Each window is charged as self-attention of its places and the prefix tokens.
        return projections + windows * self.core.flops(places + prefix)

    @property
    def N0(self) -> int:  # noqa: N802 - the paper's name
        """The number of tokens above which Taylor attention uses its linear-time form."""
        if not isinstance(self.core, TaylorCore):
            raise AttributeError(f"attention {self.attention!r} has no N0: it has one algorithm")
        return self.core.N0

    @N0.setter
    def N0(self, tokens: int) -> None:  # noqa: N802
        if not isinstance(self.core, TaylorCore):
            raise AttributeError(f"attention {self.attention!r} has no N0: it has one algorithm")
        self.core.N0 = tokens

    def _layout(self, tokens: int, grid: tuple[int, int] | None, like: Tensor) -> WindowLayout:
        if grid is None or grid[0] * grid[1] > tokens:
            raise ConfigError(
                f"grid={grid!r} with {tokens} tokens; a window needs the (height, width) of the "
                "patch tokens"
            )
        window = self.window or grid
        return window_layout(grid, window, self.shifted, like.device)


def _check_heads(dim: int, num_heads: int, head_dim: int | None) -> int:
    if dim < 1 or num_heads < 1:
        raise ConfigError(f"dim={dim}, num_heads={num_heads}; expected at least 1 each")
    if head_dim is None:
        if dim % num_heads:
            raise ConfigError(
                f"num_heads={num_heads} does not divide dim={dim}; take a divisor, or give head_dim"
            )
        return dim // num_heads
    if head_dim < 1:
        raise ConfigError(f"head_dim={head_dim}; expected at least 1")
    return head_dim


def _check_probability(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"{name}={value!r}; expected a probability in [0, 1)")
    return value
