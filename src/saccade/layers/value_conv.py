"""A depthwise convolution of the values over the patch grid, added to the output of an attention.

    o_i + sum_{j in a square around i} w_{i-j} v_j,   one weight for each channel and offset

Linear attentions weigh near and far patches too evenly; this gives them a local part (arXiv:
2107.00652 for softmax). The weights start at zero, so a new layer changes nothing. Prefix tokens
have no place in the grid and get nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError

__all__ = ["ValueConv"]


class ValueConv(nn.Module):
    """The convolution, without bias.

    Args:
        channels: Number of value channels over all heads.
        side: Side of the square, an odd number of patches.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        if side < 1 or side % 2 == 0:
            raise ConfigError(f"value_conv must be an odd number of patches or None, got {side}")
        self.side = side
        self.weight = nn.Parameter(torch.zeros(channels, 1, side, side))

    def forward(self, v: Tensor, grid: tuple[int, int] | None) -> Tensor:
        """Convolve values: (B, H, N, E) -> (B, N, H * E).

        Args:
            v: Values; prefix tokens first, then the patches row by row.
            grid: Rows and columns of the patches.
        """
        batch, heads, tokens, width = v.shape
        if grid is None or grid[0] * grid[1] > tokens:
            raise ConfigError(
                f"grid must be the (rows, columns) of the patches among {tokens} tokens, got "
                f"{grid!r}; value_conv needs it"
            )
        prefix = tokens - grid[0] * grid[1]
        image = v[:, :, prefix:].transpose(2, 3).reshape(batch, heads * width, *grid)
        out = F.conv2d(image, self.weight, padding=self.side // 2, groups=heads * width)
        return F.pad(out.flatten(2).transpose(1, 2), (0, 0, prefix, 0))

    def flops(self, num_patches: int) -> int:
        """FLOPs for one sample; a multiply-add counts as 2."""
        return 2 * num_patches * self.weight.numel()

    def extra_repr(self) -> str:
        """The sizes, for `print(model)`."""
        return f"channels={len(self.weight)}, side={self.side}"
