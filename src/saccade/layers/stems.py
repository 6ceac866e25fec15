"""Stems: layers that turn an image into a grid of tokens.

| name | tokens | layers |
|---|---|---|
| `patch` | one per patch | one strided convolution (timm's `patch_embed.proj`) |
| `patch_linear` | one per patch | patches flattened, then a linear layer: equivalent to `patch` |
| `conv` | one per pixel | (Conv3x3, BN, GELU) twice, C/2 then C: TaylorIR |
| `conv_pool` | one per 2x2 pixels | (Conv3x3, BN, GELU) three times, C/4, C/2, C, max-pool 2 |
| `conv_patch` | one per patch | Conv3x3 of stride 2, BN, GELU, ...: XCiT (arXiv:2106.09681) |
| `conv_residual` | one per patch | Conv3x3; Conv3x3 of stride 2, a residual pair, ...: ResNet-9 |

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
    """Convolutions that reduce an image to a grid of tokens.

    Args:
        proj: Module from (B, in_chans, height, width) to (B, C, rows, columns).
        img_size: Height and width of the images.
        in_chans: Channels of the images.
        stride: Pixels per token along each side.
    """

    def __init__(self, proj: nn.Module, img_size: Size, in_chans: int, stride: int) -> None:
        super().__init__()
        self.proj = proj
        self.in_chans = in_chans
        self.stride = stride
        self.strict_img_size = True
        self.set_input_size(img_size)

    def set_input_size(self, img_size: Size) -> None:
        """Expect images of another size (height, width) from now on."""
        self._check_multiples("img_size", img_size)
        self.img_size = img_size
        self.grid_size = self.dynamic_feat_size(img_size)

    def dynamic_feat_size(self, img_size: Size) -> Size:
        """Rows and columns of tokens for images of a size (height, width)."""
        return img_size[0] // self.stride, img_size[1] // self.stride

    def _check_multiples(self, name: str, img_size: Size) -> None:
        if any(side <= 0 or side % self.stride for side in img_size):
            raise ConfigError(
                f"{name} must be a height and width that are positive multiples of {self.stride}, "
                f"the pixels per token, got {img_size}"
            )

    @property
    def num_patches(self) -> int:
        """Number of tokens per image."""
        return self.grid_size[0] * self.grid_size[1]

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (B, in_chans, height, width) into tokens (B, N, C)."""
        self.check_input(x)
        if x.is_cuda:  # convolutions are faster in this format, and (B, N, C) is then a view
            x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out

    def check_input(self, x: Tensor) -> None:
        """Raise if the images do not have the channels and size that the stem was built for."""
        if x.dim() != 4 or x.shape[1] != self.in_chans:
            raise ConfigError(
                f"x must be a tensor of shape (batch, in_chans={self.in_chans}, height, width), "
                f"got {tuple(x.shape)}"
            )
        size = (x.shape[2], x.shape[3])
        if not self.strict_img_size:
            self._check_multiples("image size of x", size)
        elif size != self.img_size:
            raise ConfigError(
                f"image size of x must be {self.img_size}, got {size}; call set_input_size({size}) "
                "or create the model with dynamic_img_size=True"
            )

    def flops(self) -> int:
        """Forward FLOPs for one image; a multiply-add counts as 2."""
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
    """Flatten each patch channel by channel and apply one linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Turn images (B, in_chans, height, width) into tokens (B, N, C)."""
        self.check_input(x)
        side = self.stride
        rows, columns = self.dynamic_feat_size((x.shape[2], x.shape[3]))
        patches = x.reshape(x.shape[0], self.in_chans, rows, side, columns, side)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, chans * P^2)
        out: Tensor = self.proj(patches)
        return out

    def flops(self) -> int:
        """Forward FLOPs for one image; a multiply-add counts as 2."""
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
        raise ConfigError(
            f"patch_size must be 1 with stem='conv', which keeps every pixel, got {patch_size}"
        )
    widths = [in_chans, dim // 2, dim]
    proj = _conv_stack(widths, act)
    return Stem(nn.Sequential(*proj), img_size, in_chans, 1)


def _conv_pool(img_size: Size, in_chans: int, dim: int, patch_size: int, act: Activation) -> Stem:
    if patch_size != 2:
        raise ConfigError(
            f"patch_size must be 2 with stem='conv_pool', which pools by 2, got {patch_size}"
        )
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
    """Layers with a skip connection around them."""

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the layers to x."""
        out = x
        for layer in self:
            out = layer(out)
        return x + out


def _halvings(stem: StemName, patch_size: int) -> int:
    """Number of stride-2 convolutions that reduce a patch to one token."""
    halvings = round(math.log2(patch_size)) if patch_size > 0 else 0
    if patch_size != 2**halvings or halvings == 0:
        raise ConfigError(
            f"patch_size must be 2, 4, 8 or another power of 2 with stem={stem!r}, got {patch_size}"
        )
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
        in_chans: Channels of the images.
        embed_dim: Width C of the tokens; the first convolutions of a stem have fractions of it.
        patch_size: Pixels per token along each side.
        act: GELU variant between convolutions.
        stem_dim: Width of the first convolution of `conv_residual`, computed from `embed_dim` by
            default; must be None for other stems.
    """
    if stem_dim is not None and name != "conv_residual":
        raise ConfigError(
            f"stem_dim must be None with stem={name!r}, got {stem_dim}; only 'conv_residual' has it"
        )
    options = {} if stem_dim is None else {"stem_dim": stem_dim}
    return STEMS[name](img_size, in_chans, embed_dim, patch_size, act, **options)
