"""Stems: what turns an image into a grid of tokens.

| name | tokens | layers |
|---|---|---|
| `patch` | one a patch | one strided convolution (timm's `patch_embed.proj`) |
| `patch_linear` | one a patch | patches flattened, then a linear map: the same map as `patch` |
| `conv` | one a pixel | (Conv3x3, BN, GELU) twice, C/2 then C: TaylorIR |
| `conv_pool` | one every 2x2 pixels | (Conv3x3, BN, GELU) three times, C/4, C/2, C, max-pool 2 |
| `conv_patch` | one a patch | Conv3x3 of stride 2, BN, GELU, ...: XCiT (arXiv:2106.09681) |
| `conv_residual` | one a patch | Conv3x3; Conv3x3 of stride 2, a residual pair, ...: ResNet-9 |

Layout (B, channels, height, width) to (B, N, C), row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.choices import Activation, StemName
from saccade.layers.convolution import ImageConv2d
from saccade.layers.mlp import activation

__all__ = ["STEMS", "LinearPatchStem", "Stem", "build_stem"]

Size = tuple[int, int]


class Stem(nn.Module):
    """Convolutions that shrink an image to a grid of tokens.

    Args:
        proj: From (B, in_chans, height, width) to (B, C, rows, columns).
        img_size: Height and width of the images.
        in_chans: Their channels.
        stride: Pixels a token stands for along each side.
    """

    def __init__(self, proj: nn.Module, img_size: Size, in_chans: int, stride: int) -> None:
        super().__init__()
        self.proj = proj
        self.in_chans = in_chans
        self.stride = stride
        self.set_input_size(img_size)

    def set_input_size(self, img_size: Size) -> None:
        """Expect images of another size (height, width) from now on."""
        if any(side <= 0 or side % self.stride for side in img_size):
            raise ConfigError(
                f"img_size={img_size}: height and width must be positive multiples of "
                f"{self.stride}, the pixels a token stands for"
            )
        self.img_size = img_size
        self.grid_size = (img_size[0] // self.stride, img_size[1] // self.stride)

    @property
    def num_patches(self) -> int:
        """Tokens an image becomes."""
        return self.grid_size[0] * self.grid_size[1]

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of images (B, in_chans, height, width)."""
        self.check_input(x)
        if x.is_cuda:  # where convolutions are faster so, and (B, N, C) is no copy afterwards
            x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out

    def check_input(self, x: Tensor) -> None:
        """Refuse images that the stem was not built for."""
        if x.dim() != 4 or x.shape[1] != self.in_chans:
            raise ConfigError(
                f"x has shape {tuple(x.shape)}: expected (batch, in_chans={self.in_chans}, "
                f"height, width)"
            )
        if tuple(x.shape[2:]) != self.img_size:
            raise ConfigError(
                f"x has image size {tuple(x.shape[2:])}: the model expects {self.img_size}; "
                f"set_input_size({tuple(x.shape[2:])}) changes that"
            )

    def flops(self) -> int:
        """Forward operations for one image, a multiply-add counted as two."""
        height, width = self.img_size
        total = 0
        for module in self.proj.modules():
            if isinstance(module, nn.Conv2d):
                height, width = height // module.stride[0], width // module.stride[1]
                total += 2 * height * width * module.weight.numel()
            elif isinstance(module, nn.MaxPool2d):
                height, width = height // 2, width // 2
        return total


class LinearPatchStem(Stem):
    """Patches cut out, flattened channel by channel and mapped by one linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) of images (B, in_chans, height, width)."""
        self.check_input(x)
        (rows, columns), side = self.grid_size, self.stride
        patches = x.reshape(x.shape[0], self.in_chans, rows, side, columns, side)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, chans * P^2)
        out: Tensor = self.proj(patches)
        return out

    def flops(self) -> int:
        """Forward operations for one image, a multiply-add counted as two."""
        return 2 * self.num_patches * sum(p.numel() for p in self.proj.parameters() if p.dim() > 1)


def _conv_bn(in_chans: int, out_chans: int, stride: int = 1, *, bias: bool = True) -> nn.Sequential:
    conv = ImageConv2d(in_chans, out_chans, 3, stride=stride, padding=1, bias=bias)
    return nn.Sequential(conv, nn.BatchNorm2d(out_chans))


def _patch(img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation) -> Stem:
    proj = ImageConv2d(in_chans, dim, patch_size, stride=patch_size)
    return Stem(proj, img_size, in_chans, patch_size)


def _patch_linear(
    img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation
) -> Stem:
    proj = nn.Linear(in_chans * patch_size**2, dim)
    return LinearPatchStem(proj, img_size, in_chans, patch_size)


def _conv(img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation) -> Stem:
    if patch_size != 1:
        raise ConfigError(f"patch_size={patch_size}: the stem 'conv' keeps every pixel, so 1")
    widths = [in_chans, dim // 2, dim]
    proj = _conv_stack(widths, act)
    return Stem(nn.Sequential(*proj), img_size, in_chans, 1)


def _conv_pool(img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation) -> Stem:
    if patch_size != 2:
        raise ConfigError(f"patch_size={patch_size}: the stem 'conv_pool' pools by 2, so 2")
    widths = [in_chans, dim // 4, dim // 2, dim]
    proj = _conv_stack(widths, act)
    return Stem(nn.Sequential(*proj, nn.MaxPool2d(2)), img_size, in_chans, 2)


def _conv_stack(widths: list[int], act: Activation, *, bias: bool = True) -> list[nn.Module]:
    """Conv3x3, BN, GELU from each width to the next."""
    stack: list[nn.Module] = []
    for before, after in pairwise(widths):
        stack += [*_conv_bn(before, after, bias=bias), activation(act)]
    return stack


class Residual(nn.Sequential):
    """Layers beside which their input passes by."""

    def forward(self, x: Tensor) -> Tensor:
        """x and what the layers make of it, added."""
        made = x
        for layer in self:
            made = layer(made)
        return x + made


def _halvings(stem: StemName, patch_size: int) -> int:
    """How often sides are halved down to a patch."""
    halvings = round(math.log2(patch_size)) if patch_size > 0 else 0
    if patch_size != 2**halvings or halvings == 0:
        raise ConfigError(f"patch_size={patch_size}: the stem '{stem}' needs a power of 2")
    return halvings


def _conv_residual(
    img_size: Size,
    in_chans: int,
    dim: int,
    patch_size: int,
    act: Activation,
    stem_dim: int | None = None,
) -> Stem:
    halvings = _halvings("conv_residual", patch_size)
    first = dim // 2**halvings if stem_dim is None else stem_dim
    widths = [first * 2**step for step in range(halvings)] + [dim]
    proj = _conv_stack([in_chans, first], act)
    for before, after in pairwise(widths):
        pair = Residual(*_conv_stack([after] * 3, act, bias=False))
        proj += [*_conv_bn(before, after, stride=2, bias=False), activation(act), pair]
    return Stem(nn.Sequential(*proj), img_size, in_chans, patch_size)


def _conv_patch(img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation) -> Stem:
    halvings = _halvings("conv_patch", patch_size)
    widths = [in_chans] + [dim // 2 ** (halvings - 1 - step) for step in range(halvings)]
    proj: list[nn.Module] = []
    for before, after in pairwise(widths):
        proj += [_conv_bn(before, after, stride=2, bias=False), activation(act)]
    return Stem(nn.Sequential(*proj[:-1]), img_size, in_chans, patch_size)


STEMS: dict[StemName, Callable[..., Stem]] = {
    "patch": _patch,
    "patch_linear": _patch_linear,
    "conv": _conv,
    "conv_pool": _conv_pool,
    "conv_patch": _conv_patch,
    "conv_residual": _conv_residual,
}


def build_stem(
    name: StemName,
    img_size: Size,
    in_chans: int,
    embed_dim: int,
    patch_size: int,
    act: Activation = "gelu",
    stem_dim: int | None = None,
) -> Stem:
    """Build a stem by name.

    Args:
        name: A key of `STEMS`.
        img_size: Height and width of the images.
        in_chans: Their channels.
        embed_dim: Width C of the tokens; convolutional stems halve it, so they need a multiple.
        patch_size: Pixels a token stands for along each side.
        act: Which GELU stands between convolutions.
        stem_dim: Width of the first convolution of `conv_residual`; the others have one of their
            own, as this has where it is None.
    """
    if stem_dim is not None and name != "conv_residual":
        raise ConfigError(f"stem_dim={stem_dim}: the stem '{name}' has a width of its own")
    options = {} if stem_dim is None else {"stem_dim": stem_dim}
    return STEMS[name](img_size, in_chans, embed_dim, patch_size, act, **options)
