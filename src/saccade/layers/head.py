"""Classification heads: a linear layer, or the MLP with one hidden layer of TaylorIR.

Layout (B, C) to (B, classes).
"""

from __future__ import annotations

from torch import Tensor, nn

from saccade.layers.choices import Activation
from saccade.layers.mlp import activation

__all__ = ["MlpHead", "build_head", "head_flops"]


class MlpHead(nn.Module):
    """Linear, GELU, dropout, linear: the head of TaylorIR.

    Args:
        dim: Width of the pooled features.
        hidden_dim: Hidden features.
        num_classes: Number of logits.
        act: GELU variant.
        drop: Dropout before the last linear layer.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        num_classes: int,
        act: Activation = "gelu",
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = activation(act)
        self.drop = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of pooled features (B, C)."""
        out: Tensor = self.fc2(self.drop(self.act(self.fc1(x))))
        return out


def build_head(
    dim: int,
    num_classes: int,
    hidden_dim: int | None = None,
    act: Activation = "gelu",
    drop: float = 0.0,
) -> nn.Module:
    """Build a linear head, an `MlpHead` if `hidden_dim` is given, or an identity for 0 classes."""
    if num_classes == 0:
        return nn.Identity()
    if hidden_dim is None:
        return nn.Linear(dim, num_classes)
    return MlpHead(dim, hidden_dim, num_classes, act, drop)


def head_flops(head: nn.Module) -> int:
    """Forward FLOPs of a head for one sample; a multiply-add counts as 2."""
    linears = [module for module in head.modules() if isinstance(module, nn.Linear)]
    return sum(2 * linear.weight.numel() for linear in linears)
