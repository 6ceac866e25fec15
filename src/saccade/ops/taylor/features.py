"""The symmetric feature map behind linear-time Taylor attention, and its pullback.

With phi(x) = (x_i x_j for i <= j, x_i, 1) and the diagonal W = (a or 2a, b, c),

    c + b q.k + a (q.k)^2 = phi(q)^T W phi(k)

because (q.k)^2 = sum_ij q_i q_j k_i k_j counts every pair i < j twice. phi has
F = D(D+1)/2 + D + 1 entries instead of D^2 + D + 1.

Layout is feature-major, (G, F, n) with tokens last, so that each row of products is one contiguous
multiplication. n is the length of a chunk: phi is never stored for all tokens.
"""

import torch
from torch import Tensor

__all__ = ["feature_weights", "features", "features_pullback", "num_features"]


def num_features(head_dim: int) -> int:
    """F = D(D+1)/2 + D + 1."""
    return head_dim * (head_dim + 1) // 2 + head_dim + 1


def features(x: Tensor, buffer: Tensor | None = None) -> Tensor:
    """phi of a chunk of tokens: (G, D, n) -> (G, F, n).

    Args:
        x: The chunk.
        buffer: Where to write, at least as large as the result. New memory for every chunk would
            cost as much as the products.
    """
    groups, dim, length = x.shape
    if buffer is None:
        phi = x.new_empty(groups, num_features(dim), length)
    else:
        phi = buffer[:groups, :, :length]
    row = 0
    for i in range(dim):
        torch.mul(x[:, i:], x[:, i : i + 1], out=phi[:, row : row + dim - i])
        row += dim - i
    phi[:, row : row + dim] = x
    phi[:, row + dim] = 1
    return phi


def features_pullback(x: Tensor, grad_phi: Tensor) -> Tensor:
    """Gradient of x from that of phi(x): (G, D, n), (G, F, n) -> (G, D, n)."""
    dim = x.shape[1]
    pairs = grad_phi.shape[1] - dim - 1
    grad = grad_phi[:, pairs : pairs + dim].clone()
    row = 0
    for i in range(dim):
        block = grad_phi[:, row : row + dim - i]
        grad[:, i:].addcmul_(block, x[:, i : i + 1])
        grad[:, i] += (block * x[:, i:]).sum(dim=1)
        row += dim - i
    return grad


def feature_weights(head_dim: int, a: float, b: float, c: float, like: Tensor) -> Tensor:
    """The diagonal W as (F, 1), in the dtype and on the device of `like`."""
    rows = [2 * a] * (head_dim * (head_dim + 1) // 2) + [b] * head_dim + [c]
    squares, row = [], 0
    for i in range(head_dim):
        squares.append(row)
        row += head_dim - i
    for row in squares:
        rows[row] = a
    return like.new_tensor(rows).unsqueeze(-1)
