"""The MLP of a block: two linear layers with a GELU between them.

Layout (B, N, C). Cost 4 N C F FLOPs for F hidden features; a multiply-add counts as 2.
Parameter names are timm's (`fc1`, `fc2`).
"""

from __future__ import annotations

from torch import Tensor, nn

from saccade.layers.choices import Activation
from saccade.ops.gelu import gelu

__all__ = ["Mlp", "activation"]


class Gelu(nn.GELU):
    """`nn.GELU` by the fastest path."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply GELU to every element."""
        return gelu(x, "tanh" if self.approximate == "tanh" else "none")


def activation(name: Activation) -> Gelu:
    """The exact GELU, x Phi(x), or its tanh approximation (arXiv:1606.08415)."""
    return Gelu(approximate="tanh" if name == "gelu_tanh" else "none")


class Mlp(nn.Module):
    """Linear, GELU, dropout, linear, dropout.

    Args:
        dim: Width C of the tokens.
        hidden_dim: Hidden features F.
        act: GELU variant.
        drop: Dropout after each linear layer.
        act_drop: Dropout after the activation instead of `drop`; None for `drop`.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        act: Activation = "gelu",
        drop: float = 0.0,
        act_drop: float | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = activation(act)
        self.drop1 = nn.Dropout(drop if act_drop is None else act_drop)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to each token, (B, N, C) to (B, N, C)."""
        x = self.drop1(self.act(self.fc1(x)))  # (B, N, F)
        out: Tensor = self.drop2(self.fc2(x))
        return out

    def flops(self, num_tokens: int) -> int:
        """Forward FLOPs for one sample; a multiply-add counts as 2."""
        return 2 * num_tokens * (self.fc1.weight.numel() + self.fc2.weight.numel())
