"""Convolutions of images of few channels, as one matrix product where that is faster.

cuDNN pads three channels to eight and takes kernels made for many: the first 3x3 layer of
`residual_cifar` (512 images, 64 channels, H200) took 190 us with its bias and 175 for the gradient
of its weights. With the pixels under each window written side by side, of which torch.compile makes
one pass, it takes 60 and 30. Same weights, same state dict as `nn.Conv2d`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from saccade.ops.backends import is_compiled_for_gpu

__all__ = ["ImageConv2d"]

MOST_INPUTS = 64
GRAIN = 16  # numbers that rows of a product's operands are multiples of


class ImageConv2d(nn.Conv2d):
    """A 2-D convolution of no groups and no dilation, a product where channels are few."""

    @property
    def has_few_inputs(self) -> bool:
        """Whether windows are so small that a product is faster."""
        return self.weight[0].numel() <= MOST_INPUTS

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images (B, channels, height, width)."""
        if self.has_few_inputs and is_compiled_for_gpu(x):
            return self.as_product(x)
        out: Tensor = super().forward(x)
        return out

    def as_product(self, x: Tensor) -> Tensor:
        """The same as a product of windows with the weights; channels are last in memory."""
        (height, width), (down, right) = self.kernel_size, self.stride
        above, beside = (int(side) for side in self.padding)
        x = F.pad(x, (beside, beside, above, above))
        windows = x.unfold(2, height, down).unfold(3, width, right)  # (B, chans, rows, cols, _, _)
        windows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (B, rows, cols, inputs)
        weight = self.weight.flatten(1)  # (C, inputs)
        missing = -weight.shape[1] % GRAIN
        out = F.linear(F.pad(windows, (0, missing)), F.pad(weight, (0, missing)), self.bias)
        return out.permute(0, 3, 1, 2)
