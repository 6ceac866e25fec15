"""The feed-forward half of a block: two linear maps with a GELU between them.

Layout (B, N, C). Cost 4 N C F multiply-adds counted as two, for F hidden features.
Parameter names are timm's (`fc1`, `fc2`).
"""

from __future__ import annotations

from torch import Tensor, nn

from saccade.layers.choices import Activation
from saccade.ops.gelu import gelu

__all__ = ["Mlp", "activation"]


class Gelu(nn.GELU):
    """GELU by the fastest path."""

    def forward(self, x: Tensor) -> Tensor:
        """GELU of every number."""
        return gelu(x, "tanh" if self.approximate == "tanh" else "none")


def activation(name: Activation) -> Gelu:
    """The exact GELU, x Phi(x), or its tanh approximation (arXiv:1606.08415)."""
    return Gelu(approximate="tanh" if name == "gelu_tanh" else "none")


class Mlp(nn.Module):
    """Linear, GELU, dropout, linear, dropout.

    Args:
        dim: Width C of the tokens.
        hidden_dim: Hidden features F.
        act: Which GELU.
        drop: Dropout after each linear map.
    """

    def __init__(
        self, dim: int, hidden_dim: int, act: Activation = "gelu", drop: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = activation(act)
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map every token on its own, (B, N, C) to (B, N, C)."""
        x = self.drop1(self.act(self.fc1(x)))  # (B, N, F)
        out: Tensor = self.drop2(self.fc2(x))
        return out

    def flops(self, num_tokens: int) -> int:
        """Forward operations for one sample, a multiply-add counted as two."""
        return 2 * num_tokens * (self.fc1.weight.numel() + self.fc2.weight.numel())
