"""A pseudo-inverse by a fixed number of matrix products (Nyströmformer, arXiv:2102.03902).

    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4,   Z_0 = A' / (|A|_1 |A|_inf)

# DEVIATION: the published code takes both norms over the whole batch, so that a sample's output
# depends on the others. Here each matrix has its own norms.
"""

import torch
from torch import Tensor

from saccade.ops.arguments import compute_dtype, in_full_precision

__all__ = ["iterated_inverse"]


@in_full_precision
def iterated_inverse(a: Tensor, steps: int) -> Tensor:
    """The pseudo-inverse of matrices (..., m, m) after some steps, in float32 or float64.

    Args:
        a: Matrices without negative entries.
        steps: Number of steps, of 8 m^3 FLOPs each.
    """
    a = a.to(compute_dtype(a.dtype))
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    columns, rows = (a.sum(dim=axis).amax(dim=-1) for axis in (-2, -1))
    z = a.mT / (columns * rows)[..., None, None]
    for _ in range(steps):
        az = a @ z
        z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return z
