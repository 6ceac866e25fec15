"""The equations of a residual addition and the layer norm after it, in the dtype of the inputs.

    s = x + keep branch,   y = (s - mean s) / sqrt(var s + eps) weight + bias

Mean and (biased) variance are over the C channels of a token.
"""

from torch import Tensor

__all__ = ["add_norm_reference"]


def add_norm_reference(
    x: Tensor,
    branch: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """s and y, both (B, N, C); keep is (B,), 1 if absent, and s = x without a branch."""
    s = x
    if branch is not None:
        s = x + (branch if keep is None else keep[:, None, None] * branch)
    centered = s - s.mean(dim=-1, keepdim=True)
    variance = (centered**2).mean(dim=-1, keepdim=True)
    return s, centered / (variance + eps).sqrt() * weight + bias
