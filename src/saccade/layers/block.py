"""The pre-norm transformer block and the two things that temper its residual branches.

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

NORM_EPS = 1e-6  # timm's, for weights that go both ways


class DropPath(nn.Module):
    """Drop a residual branch for a whole sample while training, and scale up the survivors.

    Args:
        rate: Probability of dropping, in [0, 1).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """The branch, zeroed at random for some samples."""
        factors = self.factors(x)
        if factors is None:
            return x
        return (x * factors.view(-1, *(1,) * (x.dim() - 1))).to(x.dtype)

    def factors(self, x: Tensor) -> Tensor | None:
        """What the branch of each sample of x is multiplied by, float32 (B,); None for 1."""
        if not self.training or self.rate == 0.0:
            return None
        keep = 1.0 - self.rate
        return (torch.rand(x.shape[0], device=x.device) < keep).float() / keep

    def extra_repr(self) -> str:
        """The rate, for printing."""
        return f"rate={self.rate}"


class LayerScale(nn.Module):
    """A learned factor a channel on a residual branch.

    Args:
        dim: Width C.
        init_value: What every factor starts from.
    """

    def __init__(self, dim: int, init_value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init_value))
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
        init_values: Start of the layer scales; None for none.
        drop_path: Probability of dropping a branch.
    """

    def __init__(
        self,
        attn: MultiHeadAttention,
        mlp: Mlp,
        dim: int,
        init_values: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.attn = attn
        self.ls1 = _layer_scale(dim, init_values)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=NORM_EPS)
        self.mlp = mlp
        self.ls2 = _layer_scale(dim, init_values)
        self.drop_path2 = DropPath(drop_path)

    def forward(
        self, x: Tensor, key_mask: Tensor | None = None, grid: tuple[int, int] | None = None
    ) -> Tensor:
        """Mix and map the tokens.

        Args:
            x: Tokens (B, N, C).
            key_mask: (B, N), True for tokens that may be attended to.
            grid: Rows and columns of the patch tokens, for windows.
        """
        return add(*self.advance(x, None, None, key_mask, grid))

    def advance(
        self,
        x: Tensor,
        branch: Tensor | None,
        keep: Tensor | None,
        key_mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`forward`, but the last addition before and after is left to the norm that follows.

        Args:
            x: Tokens (B, N, C).
            branch: What is still to be added to them; None for nothing.
            keep: Factor of each sample's branch (B,); None for 1.
            key_mask: As in `forward`.
            grid: As in `forward`.

        Returns:
            Tokens, what is still to be added to them, and its factors.
        """
        x, y = add_norm(x, branch, keep, self.norm1)
        mixed = self.ls1(self.attn(y, key_mask=key_mask, grid=grid))
        x, y = add_norm(x, *_dropped(mixed, self.drop_path1), self.norm2)
        return x, *_dropped(self.ls2(self.mlp(y)), self.drop_path2)


def _dropped(branch: Tensor, drop_path: nn.Module) -> tuple[Tensor, Tensor | None]:
    """A branch and its factors, which another module than ours has multiplied in already."""
    if type(drop_path) is DropPath and not is_hooked(drop_path):
        return branch, drop_path.factors(branch)
    return drop_path(branch), None
