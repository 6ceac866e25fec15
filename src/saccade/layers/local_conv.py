"""A depthwise convolution of the values over the tokens, added to the output of an attention.

    o_i + sum_{j near i} w_{i-j} v_j,   one weight for each channel and offset

j runs over a square around patch i of an image, or an interval around token i of a sequence. Linear
attentions often lack a local part, which this adds (arXiv:2107.00652 for softmax). Many papers
count it as part of their attention. Here it is the same for every attention and off by default, so
that its effect can be measured separately.

The weights start at zero, so a new layer changes nothing. Prefix tokens are not in the grid and are
not changed. Windows do not limit the convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.errors import ConfigError

__all__ = ["LocalConv"]


class LocalConv(nn.Module):
    """The convolution, without bias.

    Args:
        channels: Number of value channels over all heads.
        side: Side of the square, or length of the interval, an odd number of tokens.
        is_line: True for tokens in a line.
    """

    def __init__(self, channels: int, side: int, *, is_line: bool = False) -> None:
        super().__init__()
        if side < 1 or side % 2 == 0:
            raise ConfigError(f"local_conv must be an odd number of tokens or None, got {side}")
        self.side = side
        self.weight = nn.Parameter(torch.zeros(channels, 1, 1 if is_line else side, side))

    def forward(self, v: Tensor, grid: tuple[int, int] | None) -> Tensor:
        """Convolve values: (B, H, N, E) -> (B, N, H * E).

        Args:
            v: Values; prefix tokens first, then the tokens of the grid row by row.
            grid: Rows and columns of the tokens; one row for tokens in a line.
        """
        batch, heads, tokens, width = v.shape
        if grid is None or grid[0] * grid[1] > tokens:
            raise ConfigError(
                f"grid must be the (rows, columns) of the patches among {tokens} tokens, got "
                f"{grid!r}; local_conv needs it"
            )
        prefix = tokens - grid[0] * grid[1]
        image = v[:, :, prefix:].transpose(2, 3).reshape(batch, heads * width, *grid)
        around = [side // 2 for side in self.weight.shape[2:]]
        out = F.conv2d(image, self.weight, padding=around, groups=heads * width)
        return F.pad(out.flatten(2).transpose(1, 2), (0, 0, prefix, 0))

    def flops(self, num_patches: int) -> int:
        """FLOPs for one sample; a multiply-add counts as 2."""
        return 2 * num_patches * self.weight.numel()

    def extra_repr(self) -> str:
        """The sizes, for `print(model)`."""
        return f"channels={len(self.weight)}, side={self.side}"
