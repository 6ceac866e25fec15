"""Convolution of images with few channels, as one matrix product if that is faster.

cuDNN pads three channels to eight and uses kernels made for many channels. A matrix product with
the unfolded windows, which torch.compile writes in one pass, is several times faster (docs/log.md).
Weights and state dict are those of `nn.Conv2d`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from saccade.ops.backends import is_compiled_for_gpu

__all__ = ["ImageConv2d"]

MAX_INPUTS = 64
GRAIN = 16  # rows of both factors of the product are padded to a multiple of this length


class ImageConv2d(nn.Conv2d):
    """`nn.Conv2d` without groups and dilation, as a matrix product for few input channels."""

    @property
    def has_few_inputs(self) -> bool:
        """True if windows are small enough for a matrix product to be faster."""
        return self.weight[0].numel() <= MAX_INPUTS

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images (B, channels, height, width)."""
        if self.has_few_inputs and is_compiled_for_gpu(x):
            return self.as_product(x)
        out: Tensor = super().forward(x)
        return out

    def as_product(self, x: Tensor) -> Tensor:
        """Convolve by a matrix product of windows and weights; the result is channels-last."""
        (height, width), (down, right) = self.kernel_size, self.stride
        above, beside = (int(side) for side in self.padding)
        x = F.pad(x, (beside, beside, above, above))
        windows = x.unfold(2, height, down).unfold(3, width, right)  # (B, chans, rows, cols, _, _)
        windows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (B, rows, cols, inputs)
        weight = self.weight.flatten(1)  # (C, inputs)
        missing = -weight.shape[1] % GRAIN
        out = F.linear(F.pad(windows, (0, missing)), F.pad(weight, (0, missing)), self.bias)
        return out.permute(0, 3, 1, 2)
