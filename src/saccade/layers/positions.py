"""Position embeddings: sinusoidal tables, and resampling of learned tables.

Sinusoids (arXiv:1706.03762): channel 2i of position p is sin(p / 10000^(2i/C)), channel 2i+1 the
cosine. In two dimensions half of the channels encode the row and half the column. Prefix tokens
(the class token) have positions 0, 1, ... in one dimension and zeros in two.

Layout (1, N, C), prefix tokens first, then the grid row by row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError

__all__ = [
    "interpolate_grid_positions",
    "resample_grid_positions",
    "resample_line_positions",
    "sinusoidal_1d",
    "sinusoidal_2d",
]


def _waves(length: int, dim: int) -> Tensor:
    """Sines on the even channels, cosines on the odd ones, (length, dim), in float64 on the CPU."""
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    angles = positions[:, None] * 10000.0**-exponents  # (length, ceil(dim / 2))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim]


def _as_table(waves: Tensor) -> Tensor:
    """(N, C) as (1, N, C) in the default dtype on the default device."""
    return waves[None].to(torch.get_default_device(), torch.get_default_dtype())


def sinusoidal_1d(length: int, dim: int) -> Tensor:
    """Sinusoidal table of positions 0 to `length` - 1, (1, length, dim)."""
    return _as_table(_waves(length, dim))


def sinusoidal_2d(grid: tuple[int, int], dim: int, num_prefix_tokens: int = 0) -> Tensor:
    """Sinusoidal table of a grid (rows, columns), (1, prefix + rows * columns, dim).

    Raises:
        ConfigError: If `dim` is not a multiple of 4: sine and cosine of two axes.
    """
    if dim % 4:
        raise ConfigError(
            f"embed_dim must be a multiple of 4 for sinusoidal positions of a grid, got {dim}"
        )
    rows, columns = (_waves(side, dim // 2) for side in grid)
    table = torch.cat(
        [
            rows[:, None].expand(-1, grid[1], -1),
            columns[None].expand(grid[0], -1, -1),
        ],
        dim=-1,
    ).flatten(0, 1)  # (rows * columns, dim)
    prefix = table.new_zeros(num_prefix_tokens, dim)
    return _as_table(torch.cat([prefix, table]))


def resample_grid_positions(
    table: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int = 0,
) -> Tensor:
    """Resize a learned table to another grid, bicubic with antialiasing as in timm.

    Args:
        table: (1, prefix + rows * columns, C); the prefix entries are kept as they are.
        old_grid: Rows and columns of `table`.
        new_grid: Rows and columns of the result.
        num_prefix_tokens: Number of entries in front of the grid.
    """
    if old_grid == new_grid:
        return table
    return interpolate_grid_positions(table, old_grid, new_grid, num_prefix_tokens)


def interpolate_grid_positions(
    table: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    num_prefix_tokens: int = 0,
) -> Tensor:
    """As `resample_grid_positions`, without a special case for equal grids."""
    prefix, grid = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]
    image = grid.float().reshape(1, *old_grid, -1).permute(0, 3, 1, 2)  # (1, C, rows, columns)
    image = F.interpolate(image, size=new_grid, mode="bicubic", antialias=True)
    grid = image.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)
    return torch.cat([prefix, grid], dim=1)


def resample_line_positions(table: Tensor, length: int, num_prefix_tokens: int = 0) -> Tensor:
    """Resize a learned table of a sequence to `length` positions by linear interpolation."""
    prefix, line = table[:, :num_prefix_tokens], table[:, num_prefix_tokens:]
    if line.shape[1] == length:
        return table
    line = F.interpolate(line.float().transpose(1, 2), size=length, mode="linear")
    return torch.cat([prefix, line.transpose(1, 2).to(table.dtype)], dim=1)
