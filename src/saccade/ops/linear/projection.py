"""The random matrix of FAVOR+ (Performer, arXiv:2009.14794): orthogonal rows with chi(D) norms.

Rows of a Gaussian matrix are independent; making them orthogonal in blocks of D lowers the
variance of the kernel estimate and keeps it unbiased, provided each row keeps the length of a
Gaussian vector.
"""

import torch
from torch import Tensor

from saccade.errors import ConfigError

__all__ = ["orthogonal_projection"]


def orthogonal_projection(num_features: int, head_dim: int, *, seed: int) -> Tensor:
    """A matrix (M, D) drawn from `seed` alone: the same on every machine and device.

    Args:
        num_features: Number of rows M. Rows within a block of D are orthogonal.
        head_dim: Number of columns D.
        seed: Seed of the draw.
    """
    if num_features < 1 or head_dim < 1:
        raise ConfigError(
            f"num_features and head_dim must be at least 1, got {num_features} and {head_dim}"
        )
    generator = torch.Generator(device="cpu").manual_seed(seed)
    blocks = []
    for start in range(0, num_features, head_dim):
        gaussian = torch.randn(
            head_dim, head_dim, generator=generator, dtype=torch.float64, device="cpu"
        )
        q, r = torch.linalg.qr(gaussian)
        q = q * r.diagonal().sign()  # makes q uniform over the orthogonal group
        blocks.append(q.T[: num_features - start])
    norms = torch.randn(
        num_features, head_dim, generator=generator, dtype=torch.float64, device="cpu"
    ).norm(dim=1)
    projection: Tensor = torch.cat(blocks) * norms[:, None]
    return projection.float()
