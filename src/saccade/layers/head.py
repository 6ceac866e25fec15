"""Classifiers over one pooled feature vector: a linear map, or TaylorIR's hidden GELU head.

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
        act: Which GELU.
        drop: Dropout before the last linear map.
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
    """A linear head, an `MlpHead` where `hidden_dim` is given, nothing for no classes."""
    if num_classes == 0:
        return nn.Identity()
    if hidden_dim is None:
        return nn.Linear(dim, num_classes)
    return MlpHead(dim, hidden_dim, num_classes, act, drop)


def head_flops(head: nn.Module) -> int:
    """Forward operations of a head for one sample, a multiply-add counted as two."""
    linears = [module for module in head.modules() if isinstance(module, nn.Linear)]
    return sum(2 * linear.weight.numel() for linear in linears)
