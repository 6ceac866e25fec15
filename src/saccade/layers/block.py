"""The pre-norm transformer block, with stochastic depth and layer scale on its branches.

x <- x + drop_path(ls1(attn(norm1(x))));  x <- x + drop_path(ls2(mlp(norm2(x)))).
Stochastic depth: arXiv:1603.09382. Layer scale: arXiv:2103.17239. Layout (B, N, C).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saccade.layers.attention import MultiHeadAttention
from saccade.layers.mlp import Mlp
from saccade.layers.residual import add, add_norm, is_hooked

__all__ = ["Block", "DropPath", "LayerScale"]


class DropPath(nn.Module):
    """Stochastic depth: in training, drop the branch of random samples and scale up the others.

    Args:
        rate: Probability of dropping, in [0, 1).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero the branch of random samples and scale the others by 1 / (1 - rate)."""
        factors = self.factors(x)
        if factors is None:
            return x
        return (x * factors.view(-1, *(1,) * (x.dim() - 1))).to(x.dtype)

    def factors(self, x: Tensor) -> Tensor | None:
        """Factor of each sample's branch, float32 (B,); None if all are 1."""
        if not self.training or self.rate == 0.0:
            return None
        keep = 1.0 - self.rate
        return (torch.rand(x.shape[0], device=x.device) < keep).float() / keep

    def extra_repr(self) -> str:
        """The rate, for `print(model)`."""
        return f"rate={self.rate}"


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch.

    Args:
        dim: Width C.
        init_value: Initial value of every factor.
    """

    def __init__(self, dim: int, init_value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init_value)))
        self.init_value = init_value

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of (B, N, C)."""
        return x * self.gamma


def _layer_scale(dim: int, init_values: float | None) -> nn.Module:
    return nn.Identity() if init_values is None else LayerScale(dim, init_values)


class Block(nn.Module):
    """Attention and MLP, each with a norm before and a residual around it.

    Args:
        attn: The token mixing layer, of width C.
        mlp: The feed-forward layer, of width C.
        dim: Width C.
        init_values: Initial value of the layer scales; None for no layer scale.
        drop_path: Probability of dropping a residual branch.
        norm_eps: Epsilon of the layer norms.
    """

    def __init__(
        self,
        attn: MultiHeadAttention,
        mlp: Mlp,
        dim: int,
        init_values: float | None = None,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = attn
        self.ls1 = _layer_scale(dim, init_values)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = mlp
        self.ls2 = _layer_scale(dim, init_values)
        self.drop_path2 = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Apply attention and MLP, (B, N, C) to (B, N, C).

        Args:
            x: Tokens (B, N, C).
            key_mask: (B, N), True for tokens that may be attended to.
            grid: Rows and columns of the patch tokens, for windows.
            attn_mask: As in `MultiHeadAttention`.
        """
        return add(*self.advance(x, None, None, key_mask, grid, attn_mask))

    def advance(
        self,
        x: Tensor,
        branch: Tensor | None,
        keep: Tensor | None,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`forward`, with the addition of a branch left to the layer norm that follows it.

        The previous block's last branch is added here, and this block's last branch is returned.

        Args:
            x: Tokens (B, N, C).
            branch: Branch that is still to be added to x; None for no branch.
            keep: Factor of each sample's branch (B,); None for 1.
            key_mask: As in `forward`.
            grid: As in `forward`.
            attn_mask: As in `forward`.

        Returns:
            Tokens, the branch that is still to be added to them, and its factors.
        """
        x, y = add_norm(x, branch, keep, self.norm1)
        masks = {"key_mask": key_mask} if attn_mask is None else {"attn_mask": attn_mask}
        mixed = self.ls1(self.attn(y, grid=grid, **masks))
        x, y = add_norm(x, *_dropped(mixed, self.drop_path1), self.norm2)
        return x, *_dropped(self.ls2(self.mlp(y)), self.drop_path2)


def _dropped(branch: Tensor, drop_path: nn.Module) -> tuple[Tensor, Tensor | None]:
    """A branch and its factors; the factors are None if `drop_path` was called to apply them."""
    if type(drop_path) is DropPath and not is_hooked(drop_path):
        return branch, drop_path.factors(branch)
    return drop_path(branch), None
